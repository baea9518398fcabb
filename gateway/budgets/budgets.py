"""Budgets as operators make, list and archive them.

Each function runs inside a transaction, or a snapshot, of the caller's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.budgets.alerts import raise_reached
from gateway.budgets.rows import (
    ACCOUNT,
    Account,
    Budget,
    ScopeKind,
    account_of,
    budget_of,
    insert_window,
    window_between,
    zone_named,
)
from gateway.budgets.spending import spent_in
from gateway.budgets.windows import KINDS, Kind, window_at
from gateway.ids import new_id
from gateway.prices import format_nano
from gateway.store import audit
from gateway.store.sql import Connection

DEFAULT_ALERTS = (50, 80, 100)
MAX_ALERTS = 10
MAX_PERCENT = 100
MAX_LIMIT_NANO = 10**18  # a thousand million units: sums stay within 64 bits


class BudgetError(Exception):
    """Base of the errors below; each message says what to do."""


class InvalidBudget(BudgetError):
    """A budget can't be like that."""


class NoSuchScope(BudgetError):
    """The tenant has no such project or key."""


class NoSuchBudget(BudgetError):
    """No budget has this id."""


class BudgetArchived(BudgetError):
    """It has ended, for good."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A budget to make. `scope_id` is the id of the tenant, the project or the key."""

    tenant_id: str
    scope_kind: ScopeKind
    scope_id: str
    period: Kind
    currency: str
    limit_nano: int
    model_id: str = ""  # all models
    alerts: tuple[int, ...] = DEFAULT_ALERTS


def create(db: Connection, plan: Plan, now_us: int) -> Account:
    """Make a budget, in force at once for the requests that come after.

    What the running day or month has seen already counts; a total counts from now on. Raises
    InvalidBudget or NoSuchScope.
    """
    check(plan)
    budget = Budget(
        id=new_id("bg"),
        tenant_id=plan.tenant_id,
        scope_kind=plan.scope_kind,
        scope_id=plan.scope_id,
        model_id=plan.model_id,
        period=plan.period,
        currency=plan.currency,
        limit_nano=plan.limit_nano,
        alerts=tuple(sorted(set(plan.alerts))),
        created_at=now_us,
    )
    zone = zone_named(_zone_of_scope(db, budget))
    db.execute(_CREATE, _values(budget))
    window = window_at(budget.period, now_us, zone, now_us)
    spent = spent_in(db, Account(budget, window))
    account = Account(budget, window, spent)
    insert_window(db, account)
    raise_reached(db, Account(budget, window), spent, now_us)
    told = {"scope": [budget.scope_kind, budget.scope_id], "period": budget.period}
    _note(db, "budget.created", budget, **told, currency=budget.currency)
    return account


def set_limit(db: Connection, budget_id: str, limit_nano: int, now_us: int) -> Account:
    """Change a budget's limit, in force at once. Raises NoSuchBudget, BudgetArchived
    or InvalidBudget.

    Below what was spent nothing more fits; what requests hold that run stays held.
    """
    check_limit(limit_nano)
    was_set = db.execute(_SET_LIMIT, {"id": budget_id, "limit_nano": limit_nano}).rowcount
    account = show(db, budget_id, now_us)
    if not was_set:
        raise BudgetArchived(f"The budget {budget_id} was archived: create another one.")
    _note(db, "budget.changed", account.budget)
    if account.spent_nano:  # so its window has a row
        raise_reached(db, replace(account, spent_nano=0), account.spent_nano, now_us)
    return account


def archive(db: Connection, budget_id: str, now_us: int) -> Account:
    """End a budget; ending it again changes nothing. Raises NoSuchBudget.

    Requests that run settle in it still; those that come after are not held to it. What was opened
    before counts in it, though another process' clock be ahead of ours.
    """
    has_ended = db.execute(_ARCHIVE, {"id": budget_id, "now": now_us}).rowcount
    account = show(db, budget_id, now_us)
    if has_ended:
        _note(db, "budget.archived", account.budget)
    return account


def show(db: Connection, budget_id: str, now_us: int) -> Account:
    """A budget in the window that runs now, archived or not. Raises NoSuchBudget."""
    rows = db.execute(f"{_ACCOUNTS} WHERE b.id = :id", {"id": budget_id, "now": now_us}).fetchall()
    if not rows:
        raise NoSuchBudget(f"There is no budget {budget_id!r}: list them to see their ids.")
    return _account_at(db, rows[0], now_us)


def listed(
    db: Connection, now_us: int, *, tenant_id: str | None = None, archived: bool = False
) -> list[Account]:
    """All budgets, or a tenant's, oldest first, each in the window that runs now."""
    values = {"now": now_us, "tenant_id": tenant_id or "", "archived": int(archived)}
    rows = db.execute(f"{_ACCOUNTS} {_LISTED}", values).fetchall()
    return [_account_at(db, row, now_us) for row in rows]


def raised(db: Connection, account: Account) -> list[tuple[int, int, int | None]]:
    """The alerts of an account's window: percent, when it was raised, when it was sent."""
    budget_id, starts_at = account.key
    values = {"budget_id": budget_id, "starts_at": starts_at}
    found: list[tuple[int, int, int | None]] = db.execute(_RAISED, values).fetchall()
    return found


def scope_of(
    db: Connection, tenant_id: str, project: str | None, key_id: str | None
) -> tuple[ScopeKind, str]:
    """What a budget is of: a project by its name or id, a key by its id, or else the tenant.

    Raises NoSuchScope.
    """
    if key_id is not None:
        return "key", key_id  # `create` looks for it
    if project is None:
        return "tenant", tenant_id
    row = db.execute(_PROJECT, {"tenant_id": tenant_id, "project": project}).fetchone()
    if row is None:
        raise NoSuchScope(f"The tenant has no project {project!r}.")
    return "project", row[0]


def applying(
    db: Connection, now_us: int, tenant_id: str, scope_ids: Sequence[str | None]
) -> list[Account]:
    """The budgets that a caller's requests count in: its tenant's, its project's, its key's."""
    own = listed(db, now_us, tenant_id=tenant_id)
    return [account for account in own if account.budget.scope_id in scope_ids]


def _note(db: Connection, action: str, budget: Budget, **more: object) -> None:
    limit = format_nano(budget.limit_nano)
    audit.note(db, action, "budget", budget.id, budget.tenant_id, limit=limit, **more)


def check(plan: Plan) -> None:
    """Raises InvalidBudget with what is wrong."""
    if plan.period not in KINDS:
        raise InvalidBudget(f"{plan.period!r} is not a period: it's one of {', '.join(KINDS)}.")
    check_limit(plan.limit_nano)
    if len(plan.currency) != len("USD") or not (
        plan.currency.isascii() and plan.currency.isalpha() and plan.currency.isupper()
    ):
        raise InvalidBudget(f'{plan.currency!r} is not an ISO 4217 code, such as "USD".')
    if len(plan.alerts) > MAX_ALERTS or not all(1 <= p <= MAX_PERCENT for p in plan.alerts):
        raise InvalidBudget(f"Alerts are at most {MAX_ALERTS} percentages from 1 to {MAX_PERCENT}.")


def check_limit(limit_nano: int) -> None:
    """Raises InvalidBudget for what is no limit."""
    if not 0 < limit_nano <= MAX_LIMIT_NANO:
        raise InvalidBudget("A limit is more than 0, and at most 1000000000.")


def _zone_of_scope(db: Connection, budget: Budget) -> str:
    """The time zone of the tenant, whose the scope is. Raises NoSuchScope."""
    values = {"tenant_id": budget.tenant_id, "scope_id": budget.scope_id}
    row = db.execute(_ZONE[budget.scope_kind], values).fetchone()
    if row is None:
        raise NoSuchScope(
            f"The tenant {budget.tenant_id!r} has no {budget.scope_kind} {budget.scope_id!r}."
        )
    zone: str = row[0]
    return zone


def _account_at(db: Connection, row: Sequence[object], now_us: int) -> Account:
    """Its window may have no row yet: then nothing was spent in it."""
    found = account_of(row)
    if found is not None:
        return found
    budget, zone = budget_of(row), zone_named(str(row[11]))
    window = window_between(db, budget, zone, now_us)
    return Account(budget, window or window_at(budget.period, now_us, zone, budget.created_at))


def _values(budget: Budget) -> dict[str, object]:
    return {
        "id": budget.id,
        "tenant_id": budget.tenant_id,
        "scope_kind": budget.scope_kind,
        "scope_id": budget.scope_id,
        "model_id": budget.model_id,
        "period": budget.period,
        "currency": budget.currency,
        "limit_nano": budget.limit_nano,
        "alerts": json.dumps(budget.alerts),
        "created_at": budget.created_at,
    }


_CREATE = """
INSERT INTO budget
  (id, tenant_id, scope_kind, scope_id, model_id, period, currency, limit_nano, alerts,
   created_at)
VALUES (:id, :tenant_id, :scope_kind, :scope_id, :model_id, :period, :currency, :limit_nano,
  :alerts, :created_at)
"""

_SET_LIMIT = "UPDATE budget SET limit_nano = :limit_nano WHERE id = :id AND archived_at IS NULL"

_ARCHIVE = """
UPDATE budget SET archived_at = (
  SELECT CASE WHEN max(charge_at) >= :now THEN max(charge_at) + 1 ELSE :now END
  FROM usage_record WHERE usage_record.tenant_id = budget.tenant_id)
WHERE id = :id AND archived_at IS NULL
"""

_ACCOUNTS = f"""
SELECT {ACCOUNT}
FROM budget AS b JOIN tenant AS t ON t.id = b.tenant_id
LEFT JOIN budget_window AS w ON w.budget_id = b.id
  AND w.starts_at <= :now AND (w.ends_at IS NULL OR w.ends_at > :now)
"""  # noqa: S608

_LISTED = """
WHERE (:tenant_id = '' OR b.tenant_id = :tenant_id) AND (:archived = 1 OR b.archived_at IS NULL)
ORDER BY b.created_at, b.id
"""

_RAISED = """
SELECT percent, raised_at, sent_at FROM budget_alert
WHERE budget_id = :budget_id AND starts_at = :starts_at ORDER BY percent
"""

_PROJECT = """
SELECT id FROM project WHERE tenant_id = :tenant_id AND :project IN (name, id)
"""

_ZONE = {
    "tenant": "SELECT timezone FROM tenant WHERE id = :tenant_id AND id = :scope_id",
    "project": (
        "SELECT t.timezone FROM tenant AS t JOIN project AS p ON p.tenant_id = t.id"
        " WHERE t.id = :tenant_id AND p.id = :scope_id"
    ),
    "key": (
        "SELECT t.timezone FROM tenant AS t JOIN api_key AS k ON k.tenant_id = t.id"
        " WHERE t.id = :tenant_id AND k.id = :scope_id"
    ),
}
