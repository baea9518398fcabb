"""POST /v1/tokens: a key mints a short-lived token for its own browsers. Nothing is stored."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.asgi import Call, encode
from gateway.caller import identify
from gateway.env import Env
from gateway.errors import BadRequest, MissingScope
from gateway.identity.scopes import DELEGABLE, KEYS_WRITE, UnknownScope, parse
from gateway.identity.tokens import MAX_LEN, Grant, TokenFields
from gateway.ids import new_id
from gateway.schema import NOT_JSON, refusal
from gateway.store.principal import Principal
from runtime.config.kinds import origin_fault

US = 1_000_000
MAX_BODY_BYTES = 64 * 1024

_decode = msgspec.json.Decoder(TokenFields).decode


async def mint(env: Env, call: Call) -> None:
    """A token that may at most what the key may, and ends with it."""
    principal = await identify(env, call, KEYS_WRITE)
    if principal.key_id is None:  # an issuer's token: there is no secret that could end this one
        raise MissingScope("only an API key mints tokens")
    fields = _fields(await call.body(MAX_BODY_BYTES, env.limits.body_s))
    grant = _grant(env, principal, fields)
    token = env.auth.mint(grant)
    if len(token) > MAX_LEN:
        raise BadRequest("models: too long a list for a token", param="models")
    call.notes["token"] = grant.id
    await call.send_json(200, encode(_answer(principal, grant, token)))


def _fields(body: bytes) -> TokenFields:
    try:
        return _decode(body or b"{}")
    except NOT_JSON as fault:
        raise refusal(fault) from None


def _grant(env: Env, principal: Principal, fields: TokenFields) -> Grant:
    """Raises BadRequest for more than the key may hand on."""
    try:
        scopes = parse(fields.scopes)
    except UnknownScope as fault:
        raise BadRequest(f"scopes: {fault}", param="scopes") from None
    if more := sorted(scopes - (principal.scopes & DELEGABLE)):
        raise BadRequest(f"scopes: {more[0]!r} is not this key's to hand on", param="scopes")
    models = None if fields.models is None else frozenset(fields.models)
    if models is not None:
        for model in sorted(models):  # 404 for one that isn't the key's, as anywhere
            env.catalog.deployment(model, env.clock.now_us(), principal.models)
    if fields.origin is not None and (wrong := origin_fault(fields.origin)):
        raise BadRequest(f"origin: {wrong}", param="origin")
    expires = env.clock.now_us() // US + fields.ttl
    if principal.expires_at is not None:
        expires = min(expires, principal.expires_at // US)
    return Grant(new_id("tk"), principal.secret, expires, scopes, models, fields.origin)


def _answer(principal: Principal, grant: Grant, token: str) -> dict[str, Any]:
    return {
        "object": "token",
        "id": grant.id,
        "token": token,
        "key_id": principal.key_id,
        "expires_at": grant.expires,
        "scopes": sorted(grant.scopes),
        "models": None if grant.models is None else sorted(grant.models),
        "origin": grant.origin,
    }
