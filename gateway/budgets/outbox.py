"""Alerts that wait to be sent, as they lie in the store. Each is claimed before it is sent.

A claim is an attempt counted up, for as long as an attempt may take: whoever counts it up has it,
whichever process that is. What a killed one had claimed is claimed again, so that an alert may be
sent twice, and is never lost.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.budgets.rows import ACCOUNT, account_of
from gateway.budgets.webhook import GIVE_UP_S, US, Alert, retry_us
from gateway.store.sql import Connection

CLAIM_S = 30  # longer than an attempt takes
AT_A_TIME = 8


@dataclass(frozen=True, slots=True)
class Waiting:
    """An alert that is due, and how often it was tried."""

    budget_id: str
    starts_at: int
    percent: int
    attempts: int


def due(db: Connection, now_us: int) -> list[Waiting]:
    """The next to be sent, those first that have waited longest."""
    values = {"now": now_us, "oldest": now_us - GIVE_UP_S * US, "count": AT_A_TIME}
    return [Waiting(*row) for row in db.execute(_DUE, values).fetchall()]


def claim(db: Connection, waiting: Waiting, now_us: int) -> Alert | None:
    """Count an attempt up. None: somebody else did, or it was sent."""
    values = {**_key(waiting), "attempts": waiting.attempts, "until": now_us + CLAIM_S * US}
    row = db.execute(_CLAIM, values).fetchone()
    if row is None:
        return None
    tenant_name, *found = db.execute(_ABOUT, _key(waiting)).fetchone()
    account = account_of(found)
    assert account is not None  # an alert is of a window that has a row
    return Alert(account, tenant_name, waiting.percent, raised_at=row[0], attempts=row[1])


def delivered(db: Connection, waiting: Waiting, now_us: int) -> None:
    """It was accepted."""
    db.execute(_SENT, {**_key(waiting), "now": now_us})


def failed(db: Connection, waiting: Waiting, now_us: int) -> None:
    """It wasn't, and is tried again later; sooner than the claim's end, or later than that."""
    next_try_at = now_us + retry_us(waiting.attempts + 1)
    db.execute(_FAILED, {**_key(waiting), "next_try_at": next_try_at})


def _key(waiting: Waiting) -> dict[str, object]:
    return {
        "budget_id": waiting.budget_id,
        "starts_at": waiting.starts_at,
        "percent": waiting.percent,
    }


_THIS = "budget_id = :budget_id AND starts_at = :starts_at AND percent = :percent"

_DUE = """
SELECT budget_id, starts_at, percent, attempts FROM budget_alert
WHERE sent_at IS NULL AND next_try_at <= :now AND raised_at > :oldest
ORDER BY next_try_at, budget_id, starts_at, percent LIMIT :count
"""

_CLAIM = f"""
UPDATE budget_alert SET attempts = attempts + 1, next_try_at = :until
WHERE {_THIS} AND sent_at IS NULL AND attempts = :attempts
RETURNING raised_at, attempts
"""  # noqa: S608

_ABOUT = f"""
SELECT t.name, {ACCOUNT}
FROM budget AS b JOIN tenant AS t ON t.id = b.tenant_id
JOIN budget_window AS w ON w.budget_id = b.id
WHERE b.id = :budget_id AND w.starts_at = :starts_at
"""  # noqa: S608

_SENT = f"UPDATE budget_alert SET sent_at = :now WHERE {_THIS}"  # noqa: S608

_FAILED = f"""
UPDATE budget_alert SET next_try_at = :next_try_at WHERE {_THIS} AND sent_at IS NULL
"""  # noqa: S608
