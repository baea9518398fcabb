"""A token of an external issuer, checked without I/O: its form, its signature, each of its claims.

The algorithm is one of the issuer's fixed list and of the key's own type; what the token says of
keys is at most a name to look one up by. Times are exact integers, names exact texts.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jwt

from gateway.identity.jwks import KeySet, VerifyingKey
from gateway.store.principal import granted
from runtime.config.issuers import IssuerSettings

MAX_LEN = 8192  # characters
MAX_KEY_ID = 256
MAX_SUBJECT = 255
LAST_SECOND = 2**40
TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt"})
# The times are checked here, against the clock that we were given; PyJWT rounds them first.
OPTIONS: Any = {"verify_exp": False, "verify_iat": False, "verify_nbf": False, "verify_sub": False}


class TokenRefused(Exception):
    """The token isn't good. The message is for the operator's log: it quotes nothing of it."""


class UnknownKey(TokenRefused):
    """No key of the issuer's has the id that the token names: there may be newer ones."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """What a token says of itself before anything of it is believed."""

    algorithm: str
    key_id: str | None
    issuer: str


@dataclass(frozen=True, slots=True)
class Verified:
    """Whom a good token speaks for."""

    tenant: str  # its name
    subject: str  # "issuer|sub"
    scopes: frozenset[str]
    expires_at: int  # unix seconds, the leeway included


def looks_like_one(token: str) -> bool:
    """Whether it's worth reading: three parts, not too long, in ASCII."""
    return len(token) <= MAX_LEN and token.isascii() and token.count(".") == 2


def envelope_of(token: str) -> Envelope:
    """Which issuer and which key to ask. Raises TokenRefused."""
    header, payload, _ = token.split(".")
    head, claims = _object(header, "header"), _object(payload, "payload")
    algorithm, key_id, kind = head.get("alg"), head.get("kid"), head.get("typ", "JWT")
    issuer = claims.get("iss")
    if not isinstance(algorithm, str) or not isinstance(issuer, str):
        raise TokenRefused("alg and iss must be texts")
    if key_id is not None and not (isinstance(key_id, str) and len(key_id) <= MAX_KEY_ID):
        raise TokenRefused("kid must be a short text")
    if not isinstance(kind, str) or kind.lower() not in TYPES:
        raise TokenRefused("typ is not that of an access token")
    if "crit" in head or "b64" in head:
        raise TokenRefused("it asks for extensions, and none is known here")
    return Envelope(algorithm, key_id, issuer)


def verify(
    token: str, envelope: Envelope, keys: KeySet, settings: IssuerSettings, now_s: float
) -> Verified:
    """Whom the token speaks for. Raises TokenRefused, or UnknownKey where newer keys may help."""
    if envelope.issuer != settings.issuer:
        raise TokenRefused("iss is another issuer")
    if envelope.algorithm not in settings.algorithms:
        raise TokenRefused("alg is none of the issuer's")
    key = keys.find(envelope.key_id, envelope.algorithm)
    if key is None:
        raise UnknownKey("no key has this kid and alg")
    claims = _signed_claims(token, envelope, key, settings)
    expires_at = _check_times(claims, settings, now_s)
    subject = claims["sub"]
    if not isinstance(subject, str) or not 0 < len(subject) <= MAX_SUBJECT:
        raise TokenRefused("sub must be a text")
    for name, wanted in settings.required_claims.items():
        if type(claims.get(name)) is not type(wanted) or claims[name] != wanted:
            raise TokenRefused(f"the claim {name!r} is not what is required")
    return Verified(
        tenant=_tenant(claims, settings),
        subject=f"{settings.issuer}|{subject}",
        scopes=_scopes(claims, settings),
        expires_at=expires_at,
    )


def _signed_claims(
    token: str, envelope: Envelope, key: VerifyingKey, settings: IssuerSettings
) -> dict[str, Any]:
    try:
        claims: dict[str, Any] = jwt.decode(
            token,
            key.key,
            algorithms=[envelope.algorithm],
            issuer=settings.issuer,
            audience=list(settings.audiences),
            options=OPTIONS | {"require": ["exp", "iat", "iss", "aud", "sub"]},
        )
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as fault:
        raise TokenRefused(type(fault).__name__) from None
    return claims


def _check_times(claims: Mapping[str, Any], settings: IssuerSettings, now_s: float) -> int:
    """When the token ends. Raises TokenRefused."""
    times = [claims["exp"], claims["iat"], claims.get("nbf", 0)]
    for value in times:
        if type(value) is not int or not 0 <= value < LAST_SECOND:
            raise TokenRefused("exp, iat and nbf must be whole numbers of seconds")
    expires, issued, not_before = times
    leeway = settings.leeway_s
    if now_s >= expires + leeway:
        raise TokenRefused("it has expired")
    if max(issued, not_before) > now_s + leeway:
        raise TokenRefused("it is from the future")
    if not 0 < expires - issued <= settings.max_life_s:
        raise TokenRefused("it lives longer than max_life_s")
    return int(expires + leeway)


def _tenant(claims: Mapping[str, Any], settings: IssuerSettings) -> str:
    if not settings.tenant_claim:
        return settings.tenant
    said = claims.get(settings.tenant_claim)
    if not isinstance(said, str):
        raise TokenRefused("the claim that names the tenant is no text")
    tenant = settings.tenants.get(said) if settings.tenants else said
    if not tenant:
        raise TokenRefused("no tenant is named for what the claim says")
    return tenant


def _scopes(claims: Mapping[str, Any], settings: IssuerSettings) -> frozenset[str]:
    """What the issuer may give at most, and of that, if it says so itself, what it gives."""
    most = granted(" ".join(settings.scopes))
    if not settings.scopes_claim:
        return most
    said = claims.get(settings.scopes_claim, "")
    names = said.split() if isinstance(said, str) else said
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TokenRefused("the claim with the scopes is neither a text nor a list of texts")
    return most & granted(" ".join(names))


def _object(part: str, name: str) -> dict[str, Any]:
    try:
        found = json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, RecursionError):
        raise TokenRefused(f"its {name} can't be read") from None
    if not isinstance(found, dict):
        raise TokenRefused(f"its {name} is no object")
    return found
