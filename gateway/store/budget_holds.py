"""What open records hold in the windows of budgets: taken away as they close, whoever does it.

How much is held, and whether it fits, is for `gateway/budgets` to say.
"""

from __future__ import annotations

from gateway.store.sql import Connection

Window = tuple[str, int]  # a budget's id, and when the window starts


def take(db: Connection, record_id: object) -> dict[Window, int]:
    """Remove a record's holds; how many nano-units there were in each window. `book` comes next."""
    rows = db.execute(_TAKE, {"record_id": record_id}).fetchall()
    return {(budget_id, starts_at): nano for budget_id, starts_at, nano in rows}


def book(db: Connection, window: Window, held: int, spent: int) -> None:
    """So much less is held in a window, and so much more is spent, in nano-units."""
    budget_id, starts_at = window
    values = {"budget_id": budget_id, "starts_at": starts_at, "held": held, "spent": spent}
    db.execute(_BOOK, values)


def give_back(db: Connection, record_id: object) -> None:
    """A record holds nothing any more, and has spent nothing."""
    for window, nano in take(db, record_id).items():
        book(db, window, nano, 0)


_TAKE = """
DELETE FROM budget_hold WHERE record_id = :record_id RETURNING budget_id, starts_at, nano
"""

_BOOK = """
UPDATE budget_window SET held_nano = held_nano - :held, spent_nano = spent_nano + :spent
WHERE budget_id = :budget_id AND starts_at = :starts_at
"""
