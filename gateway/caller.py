"""Who is calling, from where and from which page, and whether they may: the first question of every
route.
"""

from __future__ import annotations

from functools import partial

from gateway.asgi import Call
from gateway.env import Env
from gateway.errors import MissingScope, NetworkNotAllowed, OriginNotAllowed, Unauthorized
from gateway.identity.auth import refused
from gateway.identity.networks import is_inside
from gateway.store.principal import ADMIN, Principal

AUTHORIZATION = b"authorization"


async def identify(env: Env, call: Call, scope: str | None) -> Principal:
    """The caller, noted for the request's log line. Raises as `Authenticator.principal` does.

    Raises MissingScope for one who may not do what needs `scope`, NetworkNotAllowed for a key that
    may not be used from there, and OriginNotAllowed for a web page that the caller's tenant doesn't
    list, or that a token isn't for.
    """
    principal = await _principal(env, call)
    call.notes |= {"tenant": principal.tenant_id, "tenant_name": principal.tenant_name}
    call.notes |= _caller(principal)
    if env.cors is not None:
        env.cors.admit(call, principal.tenant_name)
    _check_place(env, call, principal)
    if scope is not None and scope not in principal.scopes:
        raise MissingScope(f"this key may not do that: it lacks the scope {scope!r}")
    if principal.key_id is not None:
        where = partial(env.proxies.caller, call.scope)
        env.last_used.note(principal.key_id, env.clock.now_us(), where)
    return principal


async def _principal(env: Env, call: Call) -> Principal:
    try:
        if sum(name == AUTHORIZATION for name, _ in call.scope["headers"]) > 1:
            raise refused("sent twice")  # who checks the one, another may use the other
        return await env.auth.principal(call.header(AUTHORIZATION))
    except Unauthorized as fault:
        if fault.reason:
            call.notes["refused"] = fault.reason
        raise


def _check_place(env: Env, call: Call, principal: Principal) -> None:
    if principal.networks is not None:
        address = env.proxies.caller(call.scope)
        if not is_inside(address, principal.networks):
            raise NetworkNotAllowed(
                f"this key may not be used from {address or 'an unknown address'}; "
                "see the key's list of networks"
            )
    if principal.origin is not None and call.header(b"origin") != principal.origin:
        raise OriginNotAllowed(f"this token is for pages of {principal.origin} alone")


def _caller(principal: Principal) -> dict[str, str]:
    """How the log names a caller: a key, and beside it a token of the key's; or a subject."""
    names = {
        "key": principal.key_id,
        "token": principal.token_id,
        "subject": principal.subject,
        "project": principal.project_id,
    }
    return {name: value for name, value in names.items() if value is not None}


def project_seen(principal: Principal) -> str | None:
    """The one project whose usage the caller may see; None: all of its tenant's.

    A key of a project sees that one, unless its scopes are an administrator's.
    """
    return None if ADMIN in principal.scopes else principal.project_id
