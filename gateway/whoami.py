"""GET /v1/whoami: who the caller is, and what it may. Never the key itself."""

from __future__ import annotations

from functools import partial
from typing import Any

from gateway.asgi import Call, encode
from gateway.caller import identify
from gateway.env import Env
from gateway.identity.api_keys import Key, NoSuchKey, key_of
from gateway.identity.auth import refused
from gateway.query import query_of
from gateway.store.principal import Principal
from gateway.store.reader import read_in_thread

US = 1_000_000


async def whoami(env: Env, call: Call) -> None:
    """The caller, as the gateway knows it."""
    principal = await identify(env, call, None)
    query_of(call, ())
    key = None
    if principal.key_id is not None:
        try:
            async with call.watched():
                key = await read_in_thread(env.database, partial(key_of, key_id=principal.key_id))
        except NoSuchKey:  # the store was restored since the key was checked
            raise refused("no such key any more") from None
    await call.send_json(200, encode(_answer(principal, key)))


def _answer(principal: Principal, key: Key | None) -> dict[str, Any]:
    return {
        "object": "whoami",
        "tenant": {"id": principal.tenant_id, "name": principal.tenant_name},
        "key": None if key is None else _key(key),
        "token": None if principal.token_id is None else {"id": principal.token_id},
        "subject": principal.subject,
        "project": _project(principal, key),
        "scopes": sorted(principal.scopes),
        "models": None if principal.models is None else sorted(principal.models),
        "networks": None if principal.networks is None else list(map(str, principal.networks)),
        "origin": principal.origin,
        "expires": None if principal.expires_at is None else principal.expires_at // US,
    }


def _key(key: Key) -> dict[str, Any]:
    return {"id": key.id, "name": key.name, "hint": key.hint, "created": key.created_at // US}


def _project(principal: Principal, key: Key | None) -> dict[str, Any] | None:
    if principal.project_id is None or key is None:
        return None
    return {"id": principal.project_id, "name": key.project}
