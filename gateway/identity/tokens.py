"""Short-lived tokens that a key mints for its own browsers: `bh_tok_<what it may>.<mac>`.

Whatever a token may is in the token, under a MAC of the installation's: nothing is stored. It names
the secret that it was minted with, so it ends with that: revoked, rotated away or expired.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import replace
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.identity.scopes import DELEGABLE, INFERENCE
from gateway.store.principal import Principal

PREFIX = "bh_tok_"
LABEL = "minted-tokens"  # of the keyring: what tokens are signed with
MAX_TTL_S = 3600
MAX_LEN = 4096  # characters: it has to go into a header
US = 1_000_000
# Its end is written so that Python and JSON Schema read it alike: there `\Z` is a letter.
ORIGIN = (
    r"^https?://([a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?|\[[0-9a-f:.]+\])(:[1-9][0-9]{0,4})?(?![\s\S])"
)

Scope = Annotated[str, Meta(extra_json_schema={"enum": sorted(DELEGABLE)})]


class TokenFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a token is asked to be."""

    ttl: Annotated[int, Meta(ge=1, le=MAX_TTL_S)] = 600  # seconds
    scopes: Annotated[list[Scope], Meta(min_length=1, max_length=8)] = msgspec.field(
        default_factory=lambda: [INFERENCE]
    )
    models: Annotated[list[str], Meta(min_length=1, max_length=64)] | None = None
    origin: Annotated[str, Meta(max_length=256, pattern=ORIGIN)] | None = None


class Grant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a token may: never more than the key has at the time it is used."""

    id: str
    secret: bytes  # names the secret that minted it
    expires: int  # unix seconds
    scopes: frozenset[str]
    models: frozenset[str] | None = None  # None: those of the key
    origin: str | None = None


def mint(key: bytes, grant: Grant) -> str:
    """The token as its bearer gets it."""
    payload = urlsafe_b64encode(msgspec.json.encode(grant)).rstrip(b"=").decode()
    return f"{PREFIX}{payload}.{_mac(key, payload)}"


def read(key: bytes, token: str) -> Grant | None:
    """What a token may, or None if it isn't one of ours. Expired ones are read, too."""
    if len(token) > MAX_LEN or not token.isascii():
        return None
    payload, dot, mac = token.removeprefix(PREFIX).rpartition(".")
    if not dot or not hmac.compare_digest(mac.encode(), _mac(key, payload).encode()):
        return None
    padded = payload + "=" * (-len(payload) % 4)
    return msgspec.json.decode(urlsafe_b64decode(padded), type=Grant)  # ours: the MAC says so


def narrowed(key: Principal, grant: Grant) -> Principal:
    """The key's principal, with what the token may of it."""
    expires_at = grant.expires * US
    models = key.models if grant.models is None else grant.models
    if key.models is not None and grant.models is not None:
        models = key.models & grant.models
    return replace(
        key,
        scopes=key.scopes & grant.scopes & DELEGABLE,
        models=models,
        expires_at=expires_at if key.expires_at is None else min(expires_at, key.expires_at),
        origin=grant.origin,
        token_id=grant.id,
        base=key,
    )


def _mac(key: bytes, payload: str) -> str:
    mac = hmac.digest(key, (PREFIX + payload).encode(), "sha256")
    return urlsafe_b64encode(mac).rstrip(b"=").decode()
