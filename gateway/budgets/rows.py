"""Budgets and their windows as they lie in the store, and which of them a record counts in.

A budget is of a tenant, of one of its projects or of one of its keys, and perhaps of one model
alone; `scope_id` is that of the tenant, the project or the key. A window's row is made by the first
record that falls into it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal
from zoneinfo import ZoneInfo

import structlog

from gateway.budgets.windows import Kind, NoSuchZone, Window, window_at, zone_of
from gateway.store.sql import Connection

log = structlog.get_logger()

ScopeKind = Literal["tenant", "project", "key"]


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be spent in a window; times in microseconds UTC, `alerts` in percent."""

    id: str
    tenant_id: str
    scope_kind: ScopeKind
    scope_id: str
    model_id: str  # "": all models
    period: Kind
    currency: str
    limit_nano: int
    alerts: tuple[int, ...]
    created_at: int
    archived_at: int | None = None


@dataclass(slots=True)
class Account:
    """A budget in one of its windows: what was spent, and what requests that run hold."""

    budget: Budget
    window: Window
    spent_nano: int = 0
    held_nano: int = 0

    @property
    def left_nano(self) -> int:
        """What a request may still hold; negative if the limit was passed or lowered."""
        return self.budget.limit_nano - self.spent_nano - self.held_nano

    @property
    def key(self) -> tuple[str, int]:
        """What names the window's row."""
        return self.budget.id, self.window.starts_at

    @property
    def until(self) -> float:
        """When its window ends, or its budget, whichever is sooner; microseconds UTC."""
        ends = (self.window.ends_at, self.budget.archived_at)
        return min(math.inf if at is None else at for at in ends)


def begin(db: Connection, budget: Budget, zone: ZoneInfo, at: int) -> Account | None:
    """Begin the window that `at` is in. None: it's before the budget's first one."""
    window = window_between(db, budget, zone, at)
    if window is None:
        return None
    insert_window(db, Account(budget, window))
    return Account(budget, window)


def window_between(db: Connection, budget: Budget, zone: ZoneInfo, at: int) -> Window | None:
    """The window at a moment that no row has: it fills the gap between those before and after.

    So windows never overlap: one that begins after the tenant's zone was changed starts where the
    last one ended. None: the moment is before the first window.
    """
    ended, next_starts = db.execute(_BESIDE, {"budget_id": budget.id, "at": at}).fetchone()
    if ended is None:
        return None
    window = window_at(budget.period, at, zone, budget.created_at)
    assert window.ends_at is not None  # that of a total has a row from the start
    ends = window.ends_at if next_starts is None else min(window.ends_at, next_starts)
    return Window(max(window.starts_at, ended), ends)


def insert_window(db: Connection, account: Account) -> None:
    """Make a window's row."""
    db.execute(
        _BEGIN,
        {
            "budget_id": account.budget.id,
            "starts_at": account.window.starts_at,
            "ends_at": account.window.ends_at,
            "spent_nano": account.spent_nano,
        },
    )


def zone_named(name: str) -> ZoneInfo:
    """A tenant's zone; UTC if this machine has lost what it knew of zones: requests must go on."""
    try:
        return zone_of(name)
    except NoSuchZone as fault:
        log.error("time_zone_unknown", zone=name, fault=str(fault), instead="UTC")
        return ZoneInfo("UTC")


BUDGET = """
  b.id, b.tenant_id, b.scope_kind, b.scope_id, b.model_id, b.period, b.currency, b.limit_nano,
  b.alerts, b.created_at, b.archived_at"""
ACCOUNT = f"{BUDGET}, t.timezone, w.starts_at, w.ends_at, w.spent_nano, w.held_nano"


def budget_of(row: Sequence[Any]) -> Budget:
    """A row that begins with the columns of BUDGET."""
    return _budget(*row[:11])


@lru_cache(maxsize=4096)
def _budget(*columns: Any) -> Budget:
    """Read for each request, and the same each time."""
    return replace(Budget(*columns), alerts=tuple(json.loads(columns[8])))


def account_of(row: Sequence[Any]) -> Account | None:
    """A row that begins with the columns of ACCOUNT; None if it has no window."""
    starts_at, ends_at, spent, held = row[12:16]
    if starts_at is None:
        return None
    return Account(budget_of(row), Window(starts_at, ends_at), spent, held)


_BESIDE = """
SELECT
  (SELECT max(ends_at) FROM budget_window WHERE budget_id = :budget_id AND ends_at <= :at),
  (SELECT min(starts_at) FROM budget_window WHERE budget_id = :budget_id AND starts_at > :at)
"""

_BEGIN = """
INSERT INTO budget_window (budget_id, starts_at, ends_at, spent_nano, held_nano)
VALUES (:budget_id, :starts_at, :ends_at, :spent_nano, 0)
ON CONFLICT (budget_id, starts_at) DO NOTHING
"""
