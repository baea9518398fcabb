"""What open records hold in the windows of budgets: taken away as they close, whoever does it.

How much is held, and whether it fits, is for `gateway/budgets` to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gateway.store.many import of_ids, rows_of
from gateway.store.sql import Connection

Window = tuple[str, int]  # a budget's id, and when the window starts


class Hold(NamedTuple):
    """So many nano-units of a budget's window are an open record's: a row as it is stored."""

    record_id: str
    budget_id: str
    starts_at: int
    nano: int


def note(db: Connection, holds: Sequence[Hold]) -> None:
    """Write down what records hold. `book` comes next."""
    db.executemany(_NOTE, holds)


def take(db: Connection, record_ids: Sequence[str]) -> list[Hold]:
    """Remove what records hold; what that was. `book` comes next."""
    return [Hold(*row) for row in rows_of(db, _TAKE, record_ids)]


def book(db: Connection, window: Window, held: int, spent: int) -> None:
    """So much more is held in a window, and so much more is spent, in nano-units."""
    budget_id, starts_at = window
    values = {"budget_id": budget_id, "starts_at": starts_at, "held": held, "spent": spent}
    db.execute(_BOOK, values)


def give_back(db: Connection, record_id: str) -> None:
    """A record holds nothing any more, and has spent nothing."""
    for hold in take(db, [record_id]):
        book(db, (hold.budget_id, hold.starts_at), -hold.nano, 0)


_NOTE = """
INSERT INTO budget_hold (record_id, budget_id, starts_at, nano)
VALUES (:record_id, :budget_id, :starts_at, :nano)
"""

_TAKE = of_ids("""
DELETE FROM budget_hold WHERE record_id IN (:ids) RETURNING record_id, budget_id, starts_at, nano
""")

_BOOK = """
UPDATE budget_window SET held_nano = held_nano + :held, spent_nano = spent_nano + :spent
WHERE budget_id = :budget_id AND starts_at = :starts_at
"""
