"""Who is calling, and from which page: the first question of every route."""

from __future__ import annotations

from gateway.asgi import Call
from gateway.env import Env
from gateway.store.directory import Principal


async def identify(env: Env, call: Call) -> Principal:
    """The caller, noted for the request's log line. Raises as `Authenticator.principal` does.

    Raises OriginNotAllowed for a web page that the caller's tenant doesn't list.
    """
    principal = await env.auth.principal(call.header(b"authorization"))
    call.notes |= {
        "tenant": principal.tenant_id,
        "tenant_name": principal.tenant_name,
        "key": principal.key_id,
    }
    if env.cors is not None:
        env.cors.admit(call, principal.tenant_name)
    return principal
