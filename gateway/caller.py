"""Who is calling, from where and from which page, and whether they may: the first question of every
route.
"""

from __future__ import annotations

from typing import Any

from gateway.asgi import Call
from gateway.env import Env
from gateway.errors import MissingScope, NetworkNotAllowed, OriginNotAllowed, Unauthorized
from gateway.identity.auth import refused
from gateway.identity.networks import is_inside
from gateway.store.principal import ADMIN, Principal

AUTHORIZATION = b"authorization"


async def identify(
    env: Env, call: Call, scope: str | None, known: Principal | None = None
) -> Principal:
    """The caller, noted for the request's log line. Raises as `Authenticator.principal` does.

    `known` is who the same call was before, if it has been asked already.

    Raises MissingScope for one who may not do what needs `scope`, NetworkNotAllowed for a key that
    may not be used from there, and OriginNotAllowed for a web page that the caller's tenant doesn't
    list, or that a token isn't for.
    """
    if known is None or not env.auth.is_still(known):
        known = await _principal(env, call)
    principal = known
    _note(call.notes, principal)
    if env.cors is not None:
        env.cors.admit(call, principal.tenant_name)
    _check_place(env, call, principal)
    if scope is not None and scope not in principal.scopes:
        raise MissingScope(f"this key may not do that: it lacks the scope {scope!r}")
    if principal.key_id is not None:
        env.last_used.note(principal.key_id, call.scope, env.proxies)
    return principal


async def _principal(env: Env, call: Call) -> Principal:
    try:
        if call.repeats(AUTHORIZATION):
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


def project_seen(principal: Principal) -> str | None:
    """The one project whose usage the caller may see; None: all of its tenant's.

    A key of a project sees that one, unless its scopes are an administrator's.
    """
    return None if ADMIN in principal.scopes else principal.project_id


def _note(notes: dict[str, Any], principal: Principal) -> None:
    """How the log names a caller: by a key, and a token that it minted; or by a subject."""
    notes["tenant"] = principal.tenant_id
    notes["tenant_name"] = principal.tenant_name
    if principal.key_id is not None:
        notes["key"] = principal.key_id
    if principal.token_id is not None:
        notes["token"] = principal.token_id
    if principal.subject is not None:
        notes["subject"] = principal.subject
    if principal.project_id is not None:
        notes["project"] = principal.project_id
