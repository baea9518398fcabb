"""The budgets that records count in, for one transaction: what is in them is read once, and what
becomes of it is written once, however many records there are.

The write lock is ours all the while, so nobody else changes a window in between.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from gateway.budgets.rows import ACCOUNT, Account, account_of, begin, budget_of, zone_named
from gateway.store.budget_holds import Hold, Window, book, note, take
from gateway.store.sql import Connection

Found = tuple[int, float, list[Account]]  # from when until when, in microseconds UTC
FOR_EVER = math.inf
NONE: Found = (0, 0, [])


class Counted(NamedTuple):
    """What a record has that says which budgets it counts in."""

    tenant_id: str
    project_id: str | None
    api_key_id: str | None
    model_id: str


class Accounts:
    """Each account is one object here, and tells what it has by now. `save` comes last."""

    def __init__(self, db: Connection) -> None:
        self._db = db
        self._found: dict[Counted, Found] = {}
        self._accounts: dict[Window, Account] = {}
        self._holds: list[Hold] = []
        self._changes: dict[Window, tuple[int, int]] = {}  # of what is held, and spent

    def of(self, counted: Counted, at: int) -> list[Account]:
        """Those that a record counts in which is charged at this time, in the order of their ids.

        Their windows begin if need be.
        """
        since, until, accounts = self._found.get(counted, NONE)
        if not since <= at < until:
            accounts = self._read(counted, at)
            until = min([account.until for account in accounts], default=FOR_EVER)
            self._found[counted] = at, until, accounts
        return accounts

    def hold(self, window: Window, record_id: str, nano: int) -> None:
        """An open record holds so much."""
        self._holds.append(Hold(record_id, *window, nano))
        self._change(window, nano, 0)

    def take_back(self, record_ids: list[str]) -> None:
        """Records hold nothing any more."""
        for one in take(self._db, record_ids):
            self._change((one.budget_id, one.starts_at), -one.nano, 0)

    def spend(self, window: Window, nano: int) -> None:
        """So much was spent."""
        self._change(window, 0, nano)

    def save(self) -> None:
        """Write what has changed."""
        if self._holds:
            note(self._db, self._holds)
        for window, (held, spent) in self._changes.items():
            book(self._db, window, held, spent)

    def _change(self, window: Window, held: int, spent: int) -> None:
        more_held, more_spent = self._changes.get(window, (0, 0))
        self._changes[window] = more_held + held, more_spent + spent
        account = self._accounts.get(window)
        if account is not None:
            account.held_nano += held
            account.spent_nano += spent

    def _read(self, counted: Counted, at: int) -> list[Account]:
        rows = self._db.execute(_OF_RECORD, {**counted._asdict(), "at": at}).fetchall()
        found = []
        for row in rows:
            account = account_of(row) or begin(self._db, budget_of(row), zone_named(row[11]), at)
            if account is not None:
                found.append(self._known(account))
        return found

    def _known(self, read: Account) -> Account:
        """The one that there is already, or this, with what has changed."""
        account = self._accounts.setdefault(read.key, read)
        if account is read:
            held, spent = self._changes.get(read.key, (0, 0))
            account.held_nano += held
            account.spent_nano += spent
        return account


# A record counts by when it was opened: in the window of its hold, however long it ran.
_OF_RECORD = f"""
SELECT {ACCOUNT}
FROM budget AS b
JOIN tenant AS t ON t.id = b.tenant_id
LEFT JOIN budget_window AS w ON w.budget_id = b.id
  AND w.starts_at <= :at AND (w.ends_at IS NULL OR w.ends_at > :at)
WHERE b.tenant_id = :tenant_id AND b.scope_id IN (:tenant_id, :project_id, :api_key_id)
  AND b.model_id IN ('', :model_id) AND (b.archived_at IS NULL OR b.archived_at > :at)
ORDER BY b.id
"""  # noqa: S608
