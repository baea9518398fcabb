"""API keys: the rows, and how they are made, listed, rotated and revoked. See `tenants`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.clock import SYSTEM_CLOCK, Clock
from gateway.identity import keys, scopes
from gateway.identity.projects import NoSuchProject, project_of
from gateway.identity.tenants import (
    InvalidName,
    InvalidTerms,
    TenantError,
    id_or_all,
    tenant_id_of,
)
from gateway.ids import new_id
from gateway.store import audit
from gateway.store.sql import Connection
from runtime.config.networks import BadNetwork, parse_network

MAX_NAME_LEN = 64
MAX_LISTED = 100  # models, networks
MAX_MODEL_LEN = 128
LAST_MOMENT = 253_402_300_799 * 1_000_000  # the year 9999


@dataclass(frozen=True, slots=True)
class KeyTerms:
    """What a new key may."""

    scopes: Sequence[str] = tuple(scopes.DEFAULT)
    models: Sequence[str] = ()  # none: all
    networks: Sequence[str] = ()  # CIDR; none: from anywhere
    expires_at: int | None = None  # microseconds UTC
    project: str | None = None  # its name


@dataclass(frozen=True, slots=True)
class Key:
    """An API key without its secret; times in microseconds UTC."""

    id: str
    tenant_id: str
    hint: str
    name: str
    created_at: int
    revoked_at: int | None
    project_id: str | None = None
    project: str | None = None
    scopes: frozenset[str] = scopes.DEFAULT
    models: tuple[str, ...] | None = None
    networks: tuple[str, ...] | None = None
    expires_at: int | None = None
    rotated_at: int | None = None
    last_used_at: int | None = None
    last_used_from: str | None = None
    grace_until: int | None = None  # a secret from before the last rotation works until then


class NoSuchKey(TenantError):
    """No key has this id."""


class KeyRevoked(TenantError):
    """The key has ended."""


def create_key(
    db: Connection,
    tenant: str,
    name: str,
    pepper: bytes,
    terms: KeyTerms | None = None,
    *,
    clock: Clock = SYSTEM_CLOCK,
) -> tuple[Key, str]:
    """Add a key to the tenant of this name; the second value is the secret, which isn't stored.

    Raises InvalidName, InvalidTerms, NoSuchTenant or NoSuchProject.
    """
    if not (0 < len(name) <= MAX_NAME_LEN and name.isprintable()):
        raise InvalidName(f"{name!r} is not a key name: use 1 to 64 printable characters.")
    now_us = clock.now_us()
    tenant_id = tenant_id_of(db, tenant)
    given = _values(db, tenant, terms or KeyTerms(), now_us)
    secret, key_id = keys.mint(), new_id("key")
    named = {"id": key_id, "tenant_id": tenant_id, "name": name, "now": now_us}
    db.execute(_INSERT, given | named | _secret_values(pepper, secret))
    audit.note(db, "key.created", "key", key_id, tenant_id, **given, name=name)
    return key_of(db, key_id), secret


def list_keys(db: Connection, tenant: str | None = None) -> list[Key]:
    """The keys of the tenant of this name, or of all, oldest first, revoked ones too.

    Raises NoSuchTenant.
    """
    rows = db.execute(_LISTED, {"tenant_id": id_or_all(db, tenant)})
    return [_key(row) for row in rows.fetchall()]


def key_of(db: Connection, key_id: str) -> Key:
    """The key of this id, revoked or not. Raises NoSuchKey."""
    row = db.execute(_BY_ID, {"id": key_id}).fetchone()
    if row is None:
        raise NoSuchKey(f"There is no key {key_id!r}: list the tenant's keys to see their ids.")
    return _key(row)


def revoke_key(db: Connection, key_id: str, *, clock: Clock = SYSTEM_CLOCK) -> Key:
    """End a key, with all its secrets and tokens; again changes nothing. Raises NoSuchKey."""
    has_ended = db.execute(_REVOKE, {"id": key_id, "now": clock.now_us()}).rowcount
    db.execute(_FORGET, {"id": key_id})
    key = key_of(db, key_id)
    if has_ended:
        audit.note(db, "key.revoked", "key", key_id, key.tenant_id)
    return key


def rotate_key(
    db: Connection,
    key_id: str,
    pepper: bytes,
    grace_us: int,
    *,
    clock: Clock = SYSTEM_CLOCK,
) -> tuple[Key, str]:
    """Give a key a new secret, the second value; all else stays. The old one works for `grace_us`.

    Without grace, secrets that are in the grace of an earlier rotation end with it. Raises
    NoSuchKey or KeyRevoked.
    """
    now_us = clock.now_us()
    before = key_of(db, key_id)
    if before.revoked_at is not None:
        raise KeyRevoked(f"The key {key_id} was revoked: create another one.")
    if grace_us > 0:
        db.execute(_FORGET_PAST, {"id": key_id, "now": now_us})
        db.execute(_REMEMBER, {"id": key_id, "until": min(now_us + grace_us, LAST_MOMENT)})
    else:
        db.execute(_FORGET, {"id": key_id})
    secret = keys.mint()
    db.execute(_ROTATE, {"id": key_id, "now": now_us} | _secret_values(pepper, secret))
    grace_s = grace_us // 1_000_000
    audit.note(db, "key.rotated", "key", key_id, before.tenant_id, grace_s=grace_s)
    return key_of(db, key_id), secret


def _secret_values(pepper: bytes, secret: str) -> dict[str, Any]:
    return {"digest": keys.digest(pepper, secret), "hint": keys.hint(secret)}


def _values(db: Connection, tenant: str, terms: KeyTerms, now_us: int) -> dict[str, Any]:
    """The columns of what a key may. Raises InvalidTerms, NoSuchTenant or NoSuchProject."""
    project_id = None
    if terms.project is not None:
        project = project_of(db, tenant, terms.project)
        if project.archived_at is not None:
            raise NoSuchProject(f"The project {terms.project!r} is archived: use another one.")
        project_id = project.id
    expires_at = terms.expires_at
    if expires_at is not None and not now_us < expires_at <= LAST_MOMENT:
        raise InvalidTerms("A key's end must be in the future, and before the year 10000.")
    try:
        granted = scopes.text(scopes.parse(terms.scopes))
        networks = [str(parse_network(text)) for text in terms.networks]
    except (scopes.UnknownScope, BadNetwork) as fault:
        raise InvalidTerms(f"{fault}.") from None
    if not granted:
        raise InvalidTerms("A key without a scope can do nothing: name one.")
    for model in terms.models:
        if not (0 < len(model) <= MAX_MODEL_LEN and model.isprintable()):
            raise InvalidTerms(f"{model[:MAX_MODEL_LEN]!r} is no model's name.")
    if max(len(terms.models), len(networks)) > MAX_LISTED:
        raise InvalidTerms(f"A key's list has {MAX_LISTED} entries at most.")
    return {
        "project_id": project_id,
        "scopes": granted,
        "models": _json(terms.models),
        "networks": _json(networks),
        "expires_at": expires_at,
    }


def _json(listed: Sequence[str]) -> str | None:
    return msgspec.json.encode(sorted(set(listed))).decode() if listed else None


def _key(row: tuple[Any, ...]) -> Key:
    columns = dict(zip(Key.__slots__, row, strict=True))
    columns["scopes"] = frozenset(columns["scopes"].split())
    for name in ("models", "networks"):
        if columns[name] is not None:
            columns[name] = msgspec.json.decode(columns[name], type=tuple[str, ...])
    return Key(**columns)


_COLUMNS = """
SELECT api_key.id, api_key.tenant_id, api_key.hint, api_key.name, api_key.created_at,
  api_key.revoked_at, api_key.project_id, project.name, api_key.scopes, api_key.models,
  api_key.networks, api_key.expires_at, api_key.rotated_at, api_key_use.last_used_at,
  api_key_use.last_used_from,
  (SELECT max(valid_until) FROM api_key_past_secret WHERE key_id = api_key.id)
FROM api_key
LEFT JOIN project ON project.id = api_key.project_id
LEFT JOIN api_key_use ON api_key_use.key_id = api_key.id
"""
_LISTED = f"""
{_COLUMNS} JOIN tenant ON tenant.id = api_key.tenant_id
WHERE :tenant_id = '' OR api_key.tenant_id = :tenant_id
ORDER BY tenant.name, api_key.created_at, api_key.id
"""
_BY_ID = f"{_COLUMNS} WHERE api_key.id = :id"
_INSERT = """
INSERT INTO api_key
  (id, tenant_id, digest, hint, name, created_at, project_id, scopes, models, networks, expires_at)
VALUES
  (:id, :tenant_id, :digest, :hint, :name, :now, :project_id, :scopes, :models, :networks,
   :expires_at)
"""
_REVOKE = "UPDATE api_key SET revoked_at = :now WHERE id = :id AND revoked_at IS NULL"
_ROTATE = "UPDATE api_key SET digest = :digest, hint = :hint, rotated_at = :now WHERE id = :id"
_REMEMBER = """
INSERT INTO api_key_past_secret (digest, key_id, hint, valid_until)
SELECT digest, id, hint, :until FROM api_key WHERE id = :id
"""
_FORGET = "DELETE FROM api_key_past_secret WHERE key_id = :id"
_FORGET_PAST = "DELETE FROM api_key_past_secret WHERE key_id = :id AND valid_until <= :now"
