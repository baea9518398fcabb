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
        self._stored: dict[Window, tuple[int, int]] = {}  # as read: held, spent
        self._holds: list[Hold] = []
        self._taken: dict[Window, int] = {}  # of what was held

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

    def hold(self, account: Account, record_id: str, nano: int) -> None:
        """An open record holds so much of it."""
        self._holds.append(Hold(record_id, *account.key, nano))
        account.held_nano += nano

    def take_back(self, record_ids: list[str]) -> None:
        """Records hold nothing any more. Comes before any account is asked for."""
        for _, budget_id, starts_at, nano in take(self._db, record_ids):
            window = budget_id, starts_at
            self._taken[window] = self._taken.get(window, 0) + nano

    def save(self) -> None:
        """Write what has changed."""
        if self._holds:
            note(self._db, self._holds)
        for window, account in self._accounts.items():
            held, spent = self._stored[window]
            self._book(window, account.held_nano - held, account.spent_nano - spent)
        for window in self._taken.keys() - self._accounts.keys():
            self._book(window, -self._taken[window], 0)

    def _book(self, window: Window, held: int, spent: int) -> None:
        if held or spent:
            book(self._db, window, held, spent)

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
        window = read.key
        account = self._accounts.setdefault(window, read)
        if account is read:
            self._stored[window] = read.held_nano, read.spent_nano
            account.held_nano -= self._taken.get(window, 0)
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
