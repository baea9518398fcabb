"""Limits set, listed and cleared while gateways run: for whoever administers them."""

from __future__ import annotations

from gateway.identity.tenants import id_or_all, tenant_id_of
from gateway.store.limit_rules import Rule, Scope
from gateway.store.sql import Connection


class LimitError(Exception):
    """It can't be set. The message says why, and what to do."""


def scope_of(
    db: Connection,
    tenant: str,
    *,
    project: str | None = None,
    key_id: str | None = None,
    model: str = "",
) -> Scope:
    """What a limit is of: the tenant, or one of its projects (name or id) or keys (id).

    Raises LimitError, or NoSuchTenant.
    """
    tenant_id = tenant_id_of(db, tenant)
    if key_id is not None:
        return Scope("key", _known(db, _KEY, tenant_id, key_id, "key"), model)
    if project is not None:
        return Scope("project", _known(db, _PROJECT, tenant_id, project, "project"), model)
    return Scope("tenant", tenant_id, model)


def listed(db: Connection, tenant: str | None = None) -> list[tuple[Scope, Rule]]:
    """What was set for a tenant, its projects and its keys, or for all. Raises NoSuchTenant."""
    rows = db.execute(_LISTED, {"tenant_id": id_or_all(db, tenant)})
    return [(Scope(*row[:3]), Rule(*row[3:])) for row in rows.fetchall()]


def _known(db: Connection, query: str, tenant_id: str, name: str, kind: str) -> str:
    row = db.execute(query, {"tenant_id": tenant_id, "name": name}).fetchone()
    if row is None:
        raise LimitError(f"The tenant has no {kind} {name!r}.")
    return str(row[0])


_KEY = "SELECT id FROM api_key WHERE tenant_id = :tenant_id AND id = :name"

_PROJECT = """
SELECT id FROM project WHERE tenant_id = :tenant_id AND (id = :name OR name = :name)
"""

_LISTED = """
SELECT scope_kind, scope_id, model_id, rpm, tpm, concurrent FROM limit_rule
WHERE :tenant_id = '' OR (scope_kind = 'tenant' AND scope_id = :tenant_id)
    OR (scope_kind = 'project' AND scope_id IN
        (SELECT id FROM project WHERE tenant_id = :tenant_id))
    OR (scope_kind = 'key' AND scope_id IN
        (SELECT id FROM api_key WHERE tenant_id = :tenant_id))
ORDER BY scope_kind, scope_id, model_id
"""
