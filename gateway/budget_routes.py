"""GET /v1/budgets: what the caller may still spend."""

from __future__ import annotations

from gateway.asgi import Call, encode
from gateway.budgets.budgets import applying
from gateway.budgets.views import view
from gateway.caller import identify
from gateway.env import Env
from gateway.identity.scopes import USAGE_READ
from gateway.query import query_of
from gateway.store.reader import read_in_thread


async def budgets(env: Env, call: Call) -> None:
    """The budgets that the caller's requests count in, each in the window that runs."""
    principal = await identify(env, call, USAGE_READ)
    query_of(call, set())
    now_us = env.clock.now_us()
    scope_ids = (principal.tenant_id, principal.project_id, principal.key_id)
    async with call.watched():
        found = await read_in_thread(
            env.database, lambda db: applying(db, now_us, principal.tenant_id, scope_ids)
        )
    body = {"object": "list", "data": [view(account) for account in found]}
    await call.send_json(200, encode(body))
