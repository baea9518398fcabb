"""GET /v1/whoami: which tenant and which key the caller is. Never the key itself."""

from __future__ import annotations

from functools import partial

from gateway.asgi import Call, encode
from gateway.caller import identify
from gateway.env import Env
from gateway.identity.tenants import key_of
from gateway.store.reader import read_in_thread

US = 1_000_000


async def whoami(env: Env, call: Call) -> None:
    """The caller, as the gateway knows it."""
    principal = await identify(env, call)
    async with call.watched():
        key = await read_in_thread(env.database, partial(key_of, key_id=principal.key_id))
    answer = {
        "object": "whoami",
        "tenant": {"id": principal.tenant_id, "name": principal.tenant_name},
        "key": {
            "id": key.id,
            "name": key.name,
            "hint": key.hint,
            "created": key.created_at // US,
        },
    }
    await call.send_json(200, encode(answer))
