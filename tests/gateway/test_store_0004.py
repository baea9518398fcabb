"""Lines that were written beside their records are told by these from migration 0004 on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gateway import store
from gateway.store.address import Database, Postgres
from gateway.store.connection import open_for_reading, open_for_writing, transaction
from gateway.store.errors import IntegrityError, StoreUnavailable
from gateway.store.migrate import migrate
from gateway.store.sql import Connection
from tests.gateway.accounts import add_key, add_tenant
from tests.gateway.test_store_0002 import RECORD
from tests.postgres import Server

LINE = """
INSERT INTO usage_line
  (record_id, line_no, sku_id, token_class, quantity, price_pico, amount_pico)
VALUES (:id, :no, :sku, :class, :quantity, :price, :amount)
"""
SETTLE = """
UPDATE usage_record SET state = 'settled', seq = :seq, outcome = 'completed', billable = 1,
  bill_reason = 'full_answer', settled_at = 9, usage_source = 'upstream_final',
  input_tokens = :input, cached_input_tokens = :cached, output_tokens = :output,
  amount_pico = :amount
WHERE id = :id
"""
PRICES = {"input": 10, "cached_input": 1, "output": 100}
USAGES = [(2, 5, 3), (0, 5, 0), (7, 0, 0), (0, 0, 1), (0, 0, 0)]
WRITTEN = "SELECT * FROM usage_line ORDER BY record_id, line_no"


@pytest.fixture(params=["sqlite", "postgres"])
def before(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A store as 0003 had it, with records that were billed."""
    folder = tmp_path / "before"
    shutil.copytree(Path(store.__file__).parent / "migrations", folder)
    for path in (folder / "versions").glob("0*.py"):
        if path.name[:4] > "0003":
            path.unlink()
    database: Database = tmp_path / "store.db"
    if request.param == "postgres":
        server: Server = request.getfixturevalue("postgres_server")
        database = Postgres(server.new_database())
    migrate(database, str(folder))
    with closing(open_for_writing(database)) as db, transaction(db):
        add_tenant(db)
        add_key(db)
        for seq, counts in enumerate(USAGES, start=1):
            enter(db, f"ur_{seq}", seq, counts)
        db.execute("UPDATE ledger_counter SET seq = :seq", {"seq": len(USAGES)})
    yield database
    if isinstance(database, Postgres):
        database.close()


def enter(db: Connection, record_id: str, seq: int, counts: tuple[int, int, int]) -> None:
    db.execute(RECORD, {"id": record_id, "at": 5})
    classes = zip(PRICES.items(), counts, strict=True)
    found = [(name, count, price) for (name, price), count in classes if count]
    for no, (name, count, price) in enumerate(found, start=1):
        line = {"id": record_id, "no": no, "sku": f"m/{name}-tokens", "class": name}
        db.execute(LINE, line | {"quantity": count, "price": price, "amount": count * price})
    uncached, cached, output = counts
    amount = sum(count * price for _, count, price in found)
    tokens = {"input": uncached + cached, "cached": cached, "output": output, "amount": amount}
    db.execute(SETTLE, {"id": record_id, "seq": seq} | tokens)


def read(database: Database, sql: str) -> list[tuple[object, ...]]:
    with closing(open_for_reading(database)) as db:
        return db.execute(sql).fetchall()


def test_the_lines_that_were_written_are_those_that_are_told(before: Database) -> None:
    written = read(before, WRITTEN)
    assert len(written) == 6
    assert [step.revision for step in migrate(before)] == ["0004"]
    assert read(before, WRITTEN) == written
    with (
        closing(open_for_writing(before)) as db,
        pytest.raises(IntegrityError, match="does not change"),
        transaction(db),
    ):
        db.execute("UPDATE usage_record SET output_tokens = 0 WHERE id = 'ur_1'")


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE usage_line SET quantity = 4, amount_pico = 400 WHERE price_pico = 100",
        "UPDATE usage_line SET sku_id = 'x' WHERE line_no = 2",
        "DELETE FROM usage_line WHERE line_no = 3",
        "INSERT INTO usage_line SELECT record_id, 9, sku_id, token_class, quantity, price_pico,"
        " amount_pico, list_price_pico, list_amount_pico FROM usage_line LIMIT 1",
    ],
)
def test_lines_that_somebody_changed_are_not_lost(before: Database, change: str) -> None:
    with closing(open_for_writing(before)) as db:
        if isinstance(before, Postgres):
            db.execute("ALTER TABLE usage_line DISABLE TRIGGER USER")
        else:
            for event in ("does_not_change", "stays", "needs_open"):
                db.execute(f"DROP TRIGGER usage_line_{event}")
        db.execute(change)
    written = read(before, WRITTEN)
    with pytest.raises(StoreUnavailable, match="somebody has changed them"):
        migrate(before)
    assert read(before, WRITTEN) == written
    assert read(before, "SELECT version_num FROM alembic_version") == [("0003",)]


def test_a_gateway_of_the_version_before_goes_on_beside(before: Database) -> None:
    """It writes lines, which PostgreSQL takes and nobody needs."""
    if not isinstance(before, Postgres):
        return  # a file has one gateway
    migrate(before)
    with closing(open_for_writing(before)) as db, transaction(db):
        enter(db, "ur_9", 9, (7, 0, 3))
    told = "SELECT quantity FROM usage_line WHERE record_id = 'ur_9' ORDER BY line_no"
    assert read(before, told) == [(7,), (3,)]
