"""A store moves from SQLite to PostgreSQL, and is what it was."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.clock import SYSTEM_CLOCK
from gateway.ledger import Ledger
from gateway.store.address import Database, Postgres
from gateway.store.connection import open_for_reading, open_for_writing, transaction
from gateway.store.errors import IntegrityError
from gateway.store.hold import StoreInUse, Use
from gateway.store.migrate import migrate
from gateway.store.moving import LEFT, NotEmpty, move
from gateway.store.schema import metadata
from gateway.store.writer import Writer
from tests.gateway.records import COMPLETED, OPENING
from tests.gateway.usage.history import NOVEMBER, History
from tests.postgres import Server


@pytest.fixture
def target(postgres_server: Server) -> Iterator[Postgres]:
    address = Postgres(postgres_server.new_database())
    yield address
    address.close()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    migrate(path)
    with closing(open_for_writing(path)) as db, transaction(db):
        history = History(db)
        history.directory()
        history.requests(1500, NOVEMBER)
    return path


def rows(database: Database) -> dict[str, set[tuple[object, ...]]]:
    with closing(open_for_reading(database)) as db:
        found = {}
        for table in metadata.sorted_tables:
            names = ", ".join(column.name for column in table.columns)
            found[table.name] = set(db.execute(f"SELECT {names} FROM {table.name}").fetchall())
        return found


async def test_every_row_moves_and_the_guards_are_on_again(source: Path, target: Postgres) -> None:
    moved = await asyncio.to_thread(move, source, target)
    assert moved["usage_record"] == 1500
    assert rows(target) == rows(source)
    assert set(moved) == set(rows(source)) - set(LEFT)
    with closing(open_for_writing(target)) as db:
        with pytest.raises(IntegrityError, match="does not change"):
            db.execute("UPDATE usage_record SET finish_reason = 'x'")
        (tenant,) = db.execute("SELECT id FROM tenant LIMIT 1").fetchone()
        (key,) = db.execute("SELECT id FROM api_key WHERE tenant_id = :t LIMIT 1", {"t": tenant})\
            .fetchone()  # fmt: skip
    writer = Writer(target)
    writer.start()
    ledger = Ledger(writer, SYSTEM_CLOCK, "boot_new")
    record = await ledger.open(replace(OPENING, tenant_id=tenant, api_key_id=key))
    assert await ledger.settle(record, COMPLETED), "it goes on where it was"
    await asyncio.to_thread(writer.close)


def test_the_server_knows_at_once_how_much_there_is(source: Path, target: Postgres) -> None:
    """Else it reads all lines for each hour of an export, until it looks by itself."""
    move(source, target)
    known = "SELECT reltuples FROM pg_class WHERE oid = CAST('usage_record' AS regclass)"
    with closing(open_for_reading(target)) as db:
        assert db.execute(known).fetchone() == (1500,)


def test_one_that_isn_t_empty_or_is_in_use_is_refused(source: Path, target: Postgres) -> None:
    use = Use(source)
    assert use.take()
    with pytest.raises(StoreInUse):
        move(source, target)
    use.let_go()
    move(source, target)
    before = rows(target)
    with pytest.raises(NotEmpty, match="takes an empty one"):
        move(source, target)
    assert rows(target) == before
