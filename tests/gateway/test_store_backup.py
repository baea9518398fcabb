"""Whole copies of the database: taken beside writers, put back in one go."""

from __future__ import annotations

import sqlite3
import stat
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.identity.projects import create_project
from gateway.prices import Terms, TokenPrices
from gateway.record import OpenRecord, opened_of
from gateway.store import backup
from gateway.store.backup import Lost, StoreBroken
from gateway.store.connection import open_for_reading, open_for_writing, transaction
from gateway.store.errors import StoreUnavailable
from gateway.store.migrate import migrate
from gateway.store.records import Closed, Closing, close as close_record, insert_open
from tests.gateway.accounts import add_key, add_tenant
from tests.gateway.records import OPENING

PRICES = TokenPrices("USD", 1, 1, 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a store.db"
    migrate(path)
    with closing(open_for_writing(path)) as db:
        add_tenant(db)
        add_key(db)
    return path


def enter(path: Path, record_id: str, boot_id: str = "boot_1") -> None:
    opening = replace(OPENING, request_id=f"req_{record_id}", terms=Terms.of(PRICES))
    opened = opened_of(OpenRecord(record_id, opening, 5, 5), boot_id)
    with closing(open_for_writing(path)) as db, transaction(db):
        insert_open(db, [(opened, 5)])


def close(path: Path, record_id: str, amount_pico: int = 0) -> None:
    """Settle a record at a price of one pico a token."""
    closed = Closed(
        id=record_id,
        outcome="completed",
        billable=bool(amount_pico),
        bill_reason="delivered",
        ended_at=6,
        first_token_at=6,
        input_tokens=amount_pico,
        cached_input_tokens=0,
        output_tokens=0,
        usage_source="upstream_final",
        status_code=200,
        finish_reason="stop",
        host_id="h",
        amount_pico=amount_pico,
        list_amount_pico=None,
        claimed_input_tokens=None,
        claimed_output_tokens=None,
        attempts=1,
    )
    with closing(open_for_writing(path)) as db, transaction(db):
        assert close_record(db, [Closing(closed)], 6) == [True]


def states(path: Path) -> dict[str, str]:
    with closing(open_for_reading(path)) as db:
        return dict(db.execute("SELECT id, state FROM usage_record").fetchall())


def test_a_copy_is_one_private_file_with_everything_committed(path: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / "copy.db"
    with closing(open_for_writing(path)) as db, transaction(db):
        add_tenant(db, "globex", "tn_2")
    with closing(open_for_writing(path)) as db:
        db.execute("BEGIN IMMEDIATE")
        add_tenant(db, "initech", "tn_3")
        backup.copy(path, target)  # beside a writer, whose change isn't committed
        db.execute("ROLLBACK")
    backup.check(target)
    assert backup.facts(target).tenants == 2
    assert [file.name for file in target.parent.iterdir()] == ["copy.db"]
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_a_copy_never_replaces_a_file(path: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("notes")
    with pytest.raises(StoreUnavailable, match="can't be copied"):
        backup.copy(path, tmp_path / "precious")
    assert (tmp_path / "precious").read_text() == "notes"


def test_what_is_put_back_is_seen_whole_by_connections_that_were_open(
    path: Path, tmp_path: Path
) -> None:
    """A reader in the middle keeps its old snapshot; a writer's next statement meets the new."""
    backup.copy(path, tmp_path / "then.db")
    with closing(open_for_writing(path)) as writer, closing(open_for_reading(path)) as reader:
        add_tenant(writer, "globex", "tn_2")
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM tenant").fetchone() == (2,)
        backup.put_back(tmp_path / "then.db", path)
        assert reader.execute("SELECT count(*) FROM tenant").fetchone() == (2,)
        reader.execute("COMMIT")
        assert reader.execute("SELECT count(*) FROM tenant").fetchone() == (1,)
        add_tenant(writer, "globex", "tn_2")
        assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    backup.check(path)


def test_what_is_put_back_while_others_write_is_waited_for(path: Path, tmp_path: Path) -> None:
    """Another's write lock delays it, and doesn't fail it."""
    backup.copy(path, tmp_path / "then.db")
    with closing(open_for_writing(path)) as db:
        db.execute("BEGIN IMMEDIATE")
        add_tenant(db, "globex", "tn_2")
        putting = threading.Thread(target=backup.put_back, args=(tmp_path / "then.db", path))
        putting.start()
        putting.join(0.2)
        assert putting.is_alive()
        db.execute("COMMIT")
        putting.join(30)
        assert db.execute("SELECT count(*) FROM tenant").fetchone() == (1,)


def test_putting_back_makes_a_missing_database(path: Path, tmp_path: Path) -> None:
    backup.copy(path, tmp_path / "then.db")
    backup.put_back(tmp_path / "then.db", tmp_path / "new.db")
    assert backup.facts(tmp_path / "new.db") == backup.facts(path)
    assert stat.S_IMODE((tmp_path / "new.db").stat().st_mode) == 0o600
    migrate(tmp_path / "new.db")


def test_damage_is_found(path: Path, tmp_path: Path) -> None:
    for number in range(300):
        enter(path, f"ur_{number}")
    backup.copy(path, tmp_path / "copy.db")
    backup.check(tmp_path / "copy.db")
    data = bytearray((tmp_path / "copy.db").read_bytes())
    data[len(data) // 2 : len(data) // 2 + 4096] = b"\xff" * 4096
    (tmp_path / "copy.db").write_bytes(data)
    with pytest.raises(StoreBroken):
        backup.check(tmp_path / "copy.db")


def test_what_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("notes")
    with pytest.raises(StoreBroken, match="can't be read"):
        backup.check(tmp_path / "x.db")
    sqlite3.connect(tmp_path / "empty.db").close()
    with pytest.raises(StoreUnavailable):
        backup.facts(tmp_path / "empty.db")


def test_lost_counts_what_is_only_here(path: Path, tmp_path: Path) -> None:
    enter(path, "ur_kept")
    close(path, "ur_kept", 7)
    enter(path, "ur_open_then")
    with closing(open_for_writing(path)) as db:
        add_key(db, "key_3", "tn_1", b"\x03")
        create_project(db, "acme", "search")
    backup.copy(path, tmp_path / "then.db")
    assert not backup.lost(path, tmp_path / "then.db")
    close(path, "ur_open_then", 100)
    enter(path, "ur_later")
    close(path, "ur_later", 2_000_003)
    enter(path, "ur_free")
    close(path, "ur_free")
    enter(path, "ur_still_open")
    with closing(open_for_writing(path)) as db:
        add_tenant(db, "globex", "tn_2")
        add_key(db, "key_2", "tn_2", b"\x02")
        db.execute("UPDATE api_key SET revoked_at = 9, rotated_at = 8 WHERE id = 'key_1'")
        db.execute("UPDATE api_key SET rotated_at = 8 WHERE id = 'key_3'")
        db.execute("UPDATE tenant SET disabled_at = 9 WHERE id = 'tn_1'")
        db.execute("UPDATE project SET archived_at = 9")
    assert backup.lost(path, tmp_path / "then.db") == Lost(
        records=3, amounts={"USD": 2_000_103}, tenants=1, keys=1, revocations=3, rotations=1
    )
    assert not backup.lost(tmp_path / "then.db", path), "what is there loses nothing by more"


def test_lost_amounts_may_be_larger_than_64_bits(path: Path, tmp_path: Path) -> None:
    backup.copy(path, tmp_path / "then.db")
    for number in range(3):
        enter(path, f"ur_{number}")
        close(path, f"ur_{number}", 2**62)
    assert backup.lost(path, tmp_path / "then.db").amounts == {"USD": 3 * 2**62}


def test_open_records_of_a_copy_are_closed_unbilled(path: Path, tmp_path: Path) -> None:
    enter(path, "ur_1", "boot_1")
    enter(path, "ur_2", "boot_2")
    enter(path, "ur_3", "boot_2")
    close(path, "ur_3", 1)
    backup.copy(path, tmp_path / "copy.db")
    assert backup.close_open_records(tmp_path / "copy.db", 9) == 2
    expected = {"ur_1": "orphaned", "ur_2": "orphaned", "ur_3": "settled"}
    assert states(tmp_path / "copy.db") == expected
    assert states(path)["ur_1"] == "open"


def test_the_last_files_are_kept(tmp_path: Path) -> None:
    for name in ("a-1", "a-3", "a-2", "b-0"):
        (tmp_path / name).touch()
    backup.keep_last(tmp_path, "a-*", 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-2", "a-3", "b-0"]
    first, second = backup.stamp(), backup.stamp()
    assert first < second
