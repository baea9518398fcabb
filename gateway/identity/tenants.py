"""Tenants and their keys: the rows, and how the command line makes, lists and revokes them.

Each function is one short transaction on a connection from `open_for_writing`. A running gateway
finds out by itself, through its `KeyDirectory`.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from gateway.clock import SYSTEM_CLOCK, Clock
from gateway.identity import keys
from gateway.ids import new_id
from gateway.store.connection import transaction
from gateway.store.sql import Connection

_TENANT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_MAX_KEY_NAME_LEN = 64


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who is billed. Demo tenants exist for `bulkhead dev` alone."""

    id: str
    name: str
    is_demo: bool


@dataclass(frozen=True, slots=True)
class Key:
    """An API key without its secret; times in microseconds UTC."""

    id: str
    tenant_id: str
    hint: str
    name: str
    created_at: int
    revoked_at: int | None


class TenantError(Exception):
    """Base of the errors below; each message says what to do."""


class InvalidName(TenantError):
    """A tenant or a key can't be called that."""


class TenantExists(TenantError):
    """The name is taken."""


class NoSuchTenant(TenantError):
    """No tenant has this name."""


class NoSuchKey(TenantError):
    """No key has this id."""


def create_tenant(
    db: Connection, name: str, *, is_demo: bool = False, clock: Clock = SYSTEM_CLOCK
) -> Tenant:
    """Add a tenant. Raises InvalidName or TenantExists."""
    if not _TENANT_NAME.fullmatch(name):
        raise InvalidName(
            f"{name!r} is not a tenant name: use 1 to 64 letters, digits, dots, hyphens and "
            "underscores, and start with a letter or a digit."
        )
    tenant = Tenant(new_id("tn"), name, is_demo)
    with transaction(db):
        if db.execute("SELECT 1 FROM tenant WHERE name = :name", {"name": name}).fetchone():
            raise TenantExists(f"The tenant {name!r} exists already: choose another name.")
        db.execute(
            "INSERT INTO tenant (id, name, is_demo, created_at)"
            " VALUES (:id, :name, :is_demo, :created_at)",
            dataclasses.asdict(tenant) | {"created_at": clock.now_us()},
        )
    return tenant


def list_tenants(db: Connection) -> list[Tenant]:
    """All tenants, by name."""
    rows = db.execute("SELECT id, name, is_demo FROM tenant ORDER BY name")
    return [Tenant(id_, name, bool(is_demo)) for id_, name, is_demo in rows]


def create_key(
    db: Connection,
    tenant: str,
    name: str,
    pepper: bytes,
    *,
    clock: Clock = SYSTEM_CLOCK,
) -> tuple[Key, str]:
    """Add a key to the tenant of this name; the second value is the secret, which isn't stored.

    Raises InvalidName or NoSuchTenant.
    """
    if not (0 < len(name) <= _MAX_KEY_NAME_LEN and name.isprintable()):
        raise InvalidName(f"{name!r} is not a key name: use 1 to 64 printable characters.")
    secret = keys.mint()
    with transaction(db):
        key = Key(
            id=new_id("key"),
            tenant_id=tenant_id_of(db, tenant),
            hint=keys.hint(secret),
            name=name,
            created_at=clock.now_us(),
            revoked_at=None,
        )
        db.execute(
            "INSERT INTO api_key (id, tenant_id, digest, hint, name, created_at)"
            " VALUES (:id, :tenant_id, :digest, :hint, :name, :created_at)",
            dataclasses.asdict(key) | {"digest": keys.digest(pepper, secret)},
        )
    return key, secret


def list_keys(db: Connection, tenant: str) -> list[Key]:
    """The keys of the tenant of this name, oldest first, revoked ones too. Raises NoSuchTenant."""
    rows = db.execute(
        f"SELECT {_KEY_COLUMNS} FROM api_key WHERE tenant_id = :id ORDER BY created_at, id",  # noqa: S608
        {"id": tenant_id_of(db, tenant)},
    )
    return [Key(*row) for row in rows]


def revoke_key(db: Connection, key_id: str, *, clock: Clock = SYSTEM_CLOCK) -> Key:
    """End a key; ending it again changes nothing. Raises NoSuchKey."""
    with transaction(db):
        db.execute(
            "UPDATE api_key SET revoked_at = :now WHERE id = :id AND revoked_at IS NULL",
            {"now": clock.now_us(), "id": key_id},
        )
        return key_of(db, key_id)


def key_of(db: Connection, key_id: str) -> Key:
    """The key of this id, revoked or not. Raises NoSuchKey."""
    query = f"SELECT {_KEY_COLUMNS} FROM api_key WHERE id = :id"  # noqa: S608
    row = db.execute(query, {"id": key_id}).fetchone()
    if row is None:
        raise NoSuchKey(f"There is no key {key_id!r}: list the tenant's keys to see their ids.")
    return Key(*row)


_KEY_COLUMNS = "id, tenant_id, hint, name, created_at, revoked_at"


def tenant_id_of(db: Connection, name: str) -> str:
    """The id of the tenant of this name. Raises NoSuchTenant."""
    row = db.execute("SELECT id FROM tenant WHERE name = :name", {"name": name}).fetchone()
    if row is None:
        raise NoSuchTenant(f"There is no tenant {name!r}: create it first, or list the tenants.")
    tenant_id: str = row[0]
    return tenant_id
