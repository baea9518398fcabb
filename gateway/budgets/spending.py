"""What windows should have spent and held, by the records themselves: nothing else is the truth.

A record counts in a window by when it was opened, at its amount rounded up to a nano. Corrections
don't count: a budget bounds what requests spend, and a credit makes no room for more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gateway.budgets.rows import Account
from gateway.store.sql import Connection


@dataclass(frozen=True, slots=True)
class Difference:
    """A window that doesn't say what its records and holds say; amounts in nano-units."""

    budget_id: str
    starts_at: int
    what: Literal["spent", "held"]
    told_nano: int
    found_nano: int


def spent_in(db: Connection, account: Account) -> int:
    """What the records of a window that has no row yet have spent."""
    budget, window = account.budget, account.window
    values = {
        "tenant_id": budget.tenant_id,
        "scope_id": budget.scope_id,
        "model_id": budget.model_id,
        "currency": budget.currency,
        "starts_at": window.starts_at,
        "ends_at": _NEVER if window.ends_at is None else window.ends_at,
    }
    return int(db.execute(_SPENT, values).fetchone()[0])


def differences(db: Connection) -> list[Difference]:
    """Windows whose sums don't agree with the ledger, and holds that outlived their record."""
    return [
        Difference(budget_id, starts_at, what, int(told), int(found))
        for what, statement in _DIFFERENCES.items()
        for budget_id, starts_at, told, found in db.execute(statement, {}).fetchall()
        if told != found
    ]


_NEVER = 2**62

_NANO = "(amount_pico / 1000 + CASE WHEN amount_pico % 1000 > 0 THEN 1 ELSE 0 END)"

_BILLED = "kind = 'request' AND state = 'settled' AND billable = 1"

_SPENT = f"""
SELECT coalesce(sum({_NANO}), 0)
FROM usage_record
WHERE tenant_id = :tenant_id AND :scope_id IN (tenant_id, project_id, api_key_id)
  AND :model_id IN ('', model_id) AND currency = :currency
  AND charge_at >= :starts_at AND charge_at < :ends_at AND {_BILLED}
"""  # noqa: S608

_DIFFERENCES: dict[Literal["spent", "held"], str] = {
    "spent": f"""
SELECT w.budget_id, w.starts_at, w.spent_nano,
  (SELECT coalesce(sum({_NANO}), 0)
   FROM usage_record
   WHERE tenant_id = b.tenant_id AND b.scope_id IN (tenant_id, project_id, api_key_id)
     AND b.model_id IN ('', model_id) AND currency = b.currency
     AND charge_at >= w.starts_at AND (w.ends_at IS NULL OR charge_at < w.ends_at)
     AND (b.archived_at IS NULL OR charge_at < b.archived_at) AND {_BILLED})
FROM budget_window AS w JOIN budget AS b ON b.id = w.budget_id
ORDER BY w.budget_id, w.starts_at
""",  # noqa: S608
    # A hold whose record isn't open is one that nobody gives back: it counts as not there.
    "held": """
SELECT w.budget_id, w.starts_at, w.held_nano,
  (SELECT coalesce(sum(h.nano), 0)
   FROM budget_hold AS h JOIN usage_record AS r ON r.id = h.record_id
   WHERE h.budget_id = w.budget_id AND h.starts_at = w.starts_at AND r.state = 'open')
FROM budget_window AS w
ORDER BY w.budget_id, w.starts_at
""",
}
