"""Tenants: the rows, and how they are made, listed, changed, and kept from calling.

Each function here, in `api_keys` and in `projects` is a piece of one transaction, which its caller
has begun. A running gateway finds out by itself, through its `KeyDirectory`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from gateway.clock import SYSTEM_CLOCK, Clock
from gateway.ids import new_id
from gateway.store import audit
from gateway.store.sql import Connection

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
MAX_WEIGHT = 1000


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who is billed. Demo tenants exist for `bulkhead dev` alone."""

    id: str
    name: str
    is_demo: bool
    timezone: str = "UTC"  # IANA: when its budgets' days and months begin
    weight: int = 1  # its share where several tenants wait
    disabled_at: int | None = None  # microseconds UTC; since then nobody calls for it


class TenantError(Exception):
    """Base of the errors below, and of those of keys and projects; each says what to do."""


class InvalidName(TenantError):
    """A tenant, a project or a key can't be called that."""


class InvalidTerms(TenantError):
    """What a tenant or a key is to be given isn't to be had."""


class TenantExists(TenantError):
    """The name is taken."""


class NoSuchTenant(TenantError):
    """No tenant has this name."""


def check_name(name: str, what: str) -> None:
    """Raises InvalidName unless a tenant or a project can be called that."""
    if not _NAME.fullmatch(name):
        raise InvalidName(
            f"{name!r} is not a {what} name: use 1 to 64 letters, digits, dots, hyphens and "
            "underscores, and start with a letter or a digit."
        )


def create_tenant(
    db: Connection, name: str, *, is_demo: bool = False, clock: Clock = SYSTEM_CLOCK
) -> Tenant:
    """Add a tenant. Raises InvalidName or TenantExists."""
    check_name(name, "tenant")
    if db.execute(_BY_NAME, {"name": name}).fetchone():
        raise TenantExists(f"The tenant {name!r} exists already: choose another name.")
    tenant = Tenant(new_id("tn"), name, is_demo)
    values = {"id": tenant.id, "name": name, "is_demo": int(is_demo), "now": clock.now_us()}
    db.execute(_INSERT, values)
    audit.note(db, "tenant.created", "tenant", tenant.id, tenant.id, name=name)
    return tenant


def list_tenants(db: Connection) -> list[Tenant]:
    """All tenants, by name."""
    return [_tenant(row) for row in db.execute(f"{_SELECT} ORDER BY name").fetchall()]


def tenant_names(db: Connection) -> dict[str, str]:
    """The names of all tenants, by id."""
    return {tenant.id: tenant.name for tenant in list_tenants(db)}


def tenant_of(db: Connection, name: str) -> Tenant:
    """The tenant of this name. Raises NoSuchTenant."""
    row = db.execute(f"{_SELECT} WHERE name = :name", {"name": name}).fetchone()
    if row is None:
        raise NoSuchTenant(f"There is no tenant {name!r}: create it first, or list the tenants.")
    return _tenant(row)


def id_or_all(db: Connection, name: str | None) -> str:
    """The id of the tenant of this name; "" for None: all are meant. Raises NoSuchTenant.

    A name that is empty, as of a variable that isn't set, isn't all.
    """
    return "" if name is None else tenant_id_of(db, name)


def tenant_id_of(db: Connection, name: str) -> str:
    """The id of the tenant of this name. Raises NoSuchTenant."""
    return tenant_of(db, name).id


def set_tenant(
    db: Connection, name: str, *, timezone: str | None = None, weight: int | None = None
) -> Tenant:
    """Change what isn't None. Raises NoSuchTenant or InvalidTerms."""
    if timezone is not None and not _is_timezone(timezone):
        raise InvalidTerms(f"{timezone!r} is no time zone: use an IANA name, such as Europe/Paris.")
    if weight is not None and not 1 <= weight <= MAX_WEIGHT:
        raise InvalidTerms(f"{weight} is no weight: use a whole number from 1 to {MAX_WEIGHT}.")
    tenant_id, terms = tenant_id_of(db, name), {"timezone": timezone, "weight": weight}
    db.execute(_SET, {"id": tenant_id, **terms})
    changed = {what: value for what, value in terms.items() if value is not None}
    audit.note(db, "tenant.changed", "tenant", tenant_id, tenant_id, **changed)
    return tenant_of(db, name)


def disable_tenant(db: Connection, name: str, *, clock: Clock = SYSTEM_CLOCK) -> Tenant:
    """Refuse all its keys and tokens; doing so again changes nothing. Raises NoSuchTenant."""
    tenant_id = tenant_id_of(db, name)
    if db.execute(_DISABLE, {"id": tenant_id, "now": clock.now_us()}).rowcount:
        audit.note(db, "tenant.disabled", "tenant", tenant_id, tenant_id)
    return tenant_of(db, name)


def enable_tenant(db: Connection, name: str) -> Tenant:
    """Take its keys again. Raises NoSuchTenant."""
    tenant_id = tenant_id_of(db, name)
    if db.execute(_ENABLE, {"id": tenant_id}).rowcount:
        audit.note(db, "tenant.enabled", "tenant", tenant_id, tenant_id)
    return tenant_of(db, name)


def _tenant(row: tuple[str, str, int, str, int, int | None]) -> Tenant:
    id_, name, is_demo, timezone, weight, disabled_at = row
    return Tenant(id_, name, bool(is_demo), timezone, weight, disabled_at)


def _is_timezone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # a path, a folder, a name that isn't one
        return False
    return True


_SELECT = "SELECT id, name, is_demo, timezone, weight, disabled_at FROM tenant"
_BY_NAME = "SELECT 1 FROM tenant WHERE name = :name"
_INSERT = "INSERT INTO tenant (id, name, is_demo, created_at) VALUES (:id, :name, :is_demo, :now)"
_SET = """
UPDATE tenant SET timezone = coalesce(:timezone, timezone), weight = coalesce(:weight, weight)
WHERE id = :id
"""
_DISABLE = "UPDATE tenant SET disabled_at = :now WHERE id = :id AND disabled_at IS NULL"
_ENABLE = "UPDATE tenant SET disabled_at = NULL WHERE id = :id AND disabled_at IS NOT NULL"
