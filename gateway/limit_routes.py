"""GET /v1/limits: how much the caller may take, and what is left of it."""

from __future__ import annotations

from gateway.asgi import Call, encode
from gateway.caller import identify
from gateway.env import Env
from gateway.identity.scopes import USAGE_READ
from gateway.limits.limit import Limit
from gateway.query import query_of

US = 1_000_000


async def limits(env: Env, call: Call) -> None:
    """The caller's own limits; a model's, which all tenants share, are nobody's to read."""
    principal = await identify(env, call, USAGE_READ)
    query_of(call, set())
    served = env.catalog.served_at(env.clock.now_us())
    models = [one.id for one in served if principal.models is None or one.id in principal.models]
    found = await env.admission.look(principal, models)
    body = {"object": "list", "data": [view(limit, level) for limit, level in found]}
    await call.send_json(200, encode(body))


def view(limit: Limit, level: int) -> dict[str, object]:
    """A limit, and what may come now. `reset`: seconds until nothing of it is counted."""
    is_rate = limit.kind.value != "concurrent"
    return {
        "object": "limit",
        "scope": limit.scope,
        "model": limit.model or None,
        "kind": limit.kind.value,
        "limit": limit.number,
        "remaining": limit.left(level),
        "reset": -(-level // US) if is_rate else None,
    }
