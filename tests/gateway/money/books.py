"""Records to keep books of; statements that the store would refuse."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import count
from typing import Any, TypeVar

from gateway.ledger import Ledger
from gateway.prices import Usage
from gateway.record import Settlement
from gateway.store.address import Database, Postgres
from gateway.store.connection import open_for_reading, open_for_writing, transaction
from gateway.store.sql import Connection
from tests.gateway.records import COMPLETED, OPENING

T = TypeVar("T")
_numbers = count()


async def enter(
    ledger: Ledger, settlement: Settlement = COMPLETED, usage: Usage | None = None, **changes: Any
) -> str:
    """One closed record; its id."""
    opening = replace(OPENING, request_id=f"req_{next(_numbers)}_m", **changes)
    record = await ledger.open(opening)
    await ledger.settle(record, replace(settlement, usage=usage) if usage else settlement)
    return record.id


def write(path: Database, job: Callable[[Connection], T]) -> T:
    """Do it as a command does."""
    with closing(open_for_writing(path)) as db, transaction(db):
        return job(db)


def rows(path: Database, sql: str) -> list[tuple[Any, ...]]:
    with closing(open_for_reading(path)) as db:
        return db.execute(sql).fetchall()


def tamper(path: Database, *statements: str) -> None:
    """What nobody can do who comes through the store: its triggers are gone for it."""
    with closing(open_for_writing(path)) as db:
        if isinstance(path, Postgres):
            with transaction(db):
                db.execute("SET LOCAL session_replication_role = replica")
                for statement in statements:
                    db.execute(statement)
            return
        db.execute("PRAGMA foreign_keys = OFF")
        kept = db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        for name, _ in kept:
            db.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            db.execute(statement)
        for _, sql in kept:
            db.execute(sql)
