"""What was in a store before migration 0002 is there after it, and as immutable as before."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gateway import store
from gateway.money.reconcile import differences
from gateway.store.connection import open_for_writing
from gateway.store.migrate import migrate

RECORD = """
INSERT INTO usage_record (id, request_id, tenant_id, api_key_id, operation, model_id,
  model_revision, streamed, boot_id, currency, input_price_pico, cached_input_price_pico,
  output_price_pico, opened_at, charge_at, state)
VALUES (:id, :id, 'tn_1', 'key_1', 'chat', 'm', 'r', 1, 'boot_1', 'USD', 10, 1, 100,
  :at, :at, 'open')
"""
LINE = """
INSERT INTO usage_line (record_id, line_no, sku_id, token_class, quantity, price_pico, amount_pico)
VALUES (:id, 1, 'm/output-tokens', 'output', 3, 100, 300)
"""
SETTLE = """
UPDATE usage_record SET state = 'settled', outcome = 'completed', billable = 1,
  bill_reason = 'full_answer', settled_at = :settled_at, usage_source = 'upstream_final',
  input_tokens = 0, cached_input_tokens = 0, output_tokens = 3, amount_pico = 300
WHERE id = :id
"""
ORPHAN = """
UPDATE usage_record SET state = 'orphaned', outcome = 'crashed', billable = 0, settled_at = 9,
  usage_source = 'none', amount_pico = 0
WHERE id = :id
"""
HOUR = 3_600_000_000


@pytest.fixture
def first_only(tmp_path: Path) -> str:
    """The migrations, as they were with the first alone."""
    folder = tmp_path / "first"
    shutil.copytree(Path(store.__file__).parent / "migrations", folder)
    for path in (folder / "versions").glob("0*.py"):
        if not path.name.startswith("0001"):
            path.unlink()
    return str(folder)


@pytest.fixture
def db(tmp_path: Path, first_only: str) -> Iterator[sqlite3.Connection]:
    """A store that came from 0001: three settled records, an orphan, and one still open."""
    path = tmp_path / "store.db"
    migrate(path, first_only)
    with closing(open_for_writing(path)) as db:
        db.execute("INSERT INTO tenant VALUES ('tn_1', 'acme', 0, 5)")
        db.execute("INSERT INTO api_key VALUES ('key_1', 'tn_1', x'01', 'h', 'n', 6, NULL)")
        for id_, at in (("ur_1", 1), ("ur_2", HOUR - 1), ("ur_3", HOUR), ("ur_4", 2), ("ur_5", 3)):
            db.execute(RECORD, {"id": id_, "at": at})
        for id_, settled_at in (("ur_1", 30), ("ur_2", 10), ("ur_3", 20)):
            db.execute(LINE, {"id": id_})
            db.execute(SETTLE, {"id": id_, "settled_at": settled_at})
        db.execute(ORPHAN, {"id": "ur_4"})
        version = db.execute("SELECT version FROM directory_version").fetchone()
    assert migrate(path)[0].revision == "0002"
    with closing(open_for_writing(path)) as db:
        assert db.execute("SELECT version FROM directory_version").fetchone() > version
        yield db


def test_rows_stay_and_get_the_new_columns_defaults(db: sqlite3.Connection) -> None:
    assert db.execute("SELECT * FROM tenant").fetchall() == [("tn_1", "acme", 0, 5, "UTC", 1, None)]
    (key,) = db.execute("SELECT id, digest, scopes, models, project_id FROM api_key").fetchall()
    assert key == ("key_1", b"\1", "inference models:read usage:read", None, None)
    found = db.execute(
        "SELECT record_id, amount_pico, list_amount_pico FROM usage_line ORDER BY record_id"
    ).fetchall()
    assert found == [("ur_1", 300, None), ("ur_2", 300, None), ("ur_3", 300, None)]
    assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    assert not db.execute("SELECT 1 FROM sqlite_master WHERE name LIKE '%_0001'").fetchall()


def test_closed_records_are_numbered_in_the_order_they_were_closed_in(
    db: sqlite3.Connection,
) -> None:
    found = db.execute("SELECT id, seq, kind FROM usage_record ORDER BY seq NULLS LAST").fetchall()
    assert [row[:2] for row in found] == [
        ("ur_4", 1), ("ur_2", 2), ("ur_3", 3), ("ur_1", 4), ("ur_5", None),
    ]  # fmt: skip
    assert {row[2] for row in found} == {"request"}
    assert db.execute("SELECT seq FROM ledger_counter").fetchall() == [(4,)]


def test_what_was_billed_is_summed_by_hour(db: sqlite3.Connection) -> None:
    found = db.execute(
        "SELECT hour_at, model_id, api_key_id, project_id, requests, input_tokens,"
        " cached_input_tokens, output_tokens, amount_pico FROM usage_rollup ORDER BY hour_at"
    ).fetchall()
    assert found == [
        (0, "m", "key_1", "", 2, 0, 0, 6, 600),
        (HOUR, "m", "key_1", "", 1, 0, 0, 3, 300),
    ]
    assert list(differences(db)) == []


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE usage_record SET finish_reason = 'x' WHERE id = 'ur_1'",
        "UPDATE usage_record SET seq = 9 WHERE id = 'ur_4'",
        "DELETE FROM usage_record WHERE id = 'ur_5'",
    ],
)
def test_what_was_closed_stays_closed(db: sqlite3.Connection, change: str) -> None:
    with pytest.raises(sqlite3.IntegrityError, match=r"does not change|not deleted"):
        db.execute(change)
