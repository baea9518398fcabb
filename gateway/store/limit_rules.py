"""Limits that were set while running: one row a scope, of all models together or of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType

from gateway.store import audit
from gateway.store.sql import Connection

MOST = 10**12  # more is no limit; what counts them stays exact


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose: `id` is a tenant's, a project's or a key's."""

    kind: str  # "tenant", "project" or "key"
    id: str
    model: str = ""  # "": all models together


@dataclass(frozen=True, slots=True)
class Rule:
    """Requests and tokens a minute, requests at once. None says nothing: the config's counts."""

    rpm: int | None = None
    tpm: int | None = None
    concurrent: int | None = None


StoredRules = Mapping[Scope, Rule]
NO_RULES: StoredRules = MappingProxyType({})


def read_rules(db: Connection) -> StoredRules:
    """All there are."""
    rows = db.execute("SELECT scope_kind, scope_id, model_id, rpm, tpm, concurrent FROM limit_rule")
    return MappingProxyType({Scope(*row[:3]): Rule(*row[3:]) for row in rows})


def set_rule(db: Connection, scope: Scope, rule: Rule, now_us: int) -> Rule:
    """Set the numbers that the rule has, and leave the scope's others; what holds now.

    Raises ValueError for a number that is none of a limit.
    """
    for name in ("rpm", "tpm", "concurrent"):
        number = getattr(rule, name)
        if number is not None and not 1 <= number <= MOST:
            raise ValueError(f"{name}: expected a whole number from 1 to {MOST}, found {number}")
    row = db.execute(
        _SET,
        {
            **_named(scope),
            "rpm": rule.rpm,
            "tpm": rule.tpm,
            "concurrent": rule.concurrent,
            "now": now_us,
        },
    ).fetchone()
    told = {what: number for what, number in asdict(rule).items() if number is not None}
    _note(db, "limits.set", scope, **told)
    return Rule(*row)


def clear_rule(db: Connection, scope: Scope) -> bool:
    """Forget a scope's numbers: the config's count again. Whether there were any."""
    had_any = db.execute(_CLEAR, _named(scope)).rowcount > 0
    if had_any:
        _note(db, "limits.cleared", scope)
    return had_any


def _note(db: Connection, action: str, scope: Scope, **told: int) -> None:
    """With its tenant, so that the audit log of a tenant has it."""
    row = db.execute(_TENANT, {"id": scope.id}).fetchone()
    tenant_id = row[0] if row else None
    audit.note(db, action, scope.kind, scope.id, tenant_id, model=scope.model or None, **told)


def _named(scope: Scope) -> dict[str, str]:
    return {"kind": scope.kind, "id": scope.id, "model": scope.model}


_SET = """
INSERT INTO limit_rule (scope_kind, scope_id, model_id, rpm, tpm, concurrent, updated_at)
VALUES (:kind, :id, :model, :rpm, :tpm, :concurrent, :now)
ON CONFLICT (scope_kind, scope_id, model_id) DO UPDATE SET
    rpm = coalesce(excluded.rpm, limit_rule.rpm),
    tpm = coalesce(excluded.tpm, limit_rule.tpm),
    concurrent = coalesce(excluded.concurrent, limit_rule.concurrent),
    updated_at = excluded.updated_at
RETURNING rpm, tpm, concurrent
"""

# Ids are unlike each other, whatever they are of.
_TENANT = """
SELECT id FROM tenant WHERE id = :id
UNION ALL SELECT tenant_id FROM project WHERE id = :id
UNION ALL SELECT tenant_id FROM api_key WHERE id = :id
"""

_CLEAR = """
DELETE FROM limit_rule WHERE scope_kind = :kind AND scope_id = :id AND model_id = :model
"""
