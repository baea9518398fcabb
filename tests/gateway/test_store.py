"""The database file: how it's made, brought up to date and opened."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from gateway import store
from gateway.store.backup import facts
from gateway.store.connection import open_for_reading, open_for_writing, transaction
from gateway.store.current import HEAD, bring_up_to_date, is_current
from gateway.store.errors import IntegrityError, StoreTooNew, StoreUnavailable
from gateway.store.migrate import migrate, rehearse
from gateway.store.schema import metadata
from tests.gateway.accounts import add_key, add_tenant

SCHEMA = "SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'index') AND sql NOT NULL"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bulk head 100%.db"  # a name that a URI and an ini file would mangle


def test_migrations_from_empty_end_at_the_schema(path: Path, tmp_path: Path) -> None:
    migrate(path)
    plain = tmp_path / "plain.db"
    engine = create_engine(f"sqlite:///{plain}")
    metadata.create_all(engine)
    engine.dispose()
    with closing(sqlite3.connect(path)) as migrated, closing(sqlite3.connect(plain)) as created:
        found = dict(migrated.execute(SCHEMA).fetchall())
        found.pop("alembic_version")
        expected = dict(created.execute(SCHEMA).fetchall())
    assert {name: _parts(sql) for name, sql in found.items()} == {
        name: _parts(sql) for name, sql in expected.items()
    }


def _parts(sql: str) -> list[str]:
    """A statement's columns and constraints: a column that came later stands behind them all."""
    parts, depth = [""], 0
    for char in sql:
        depth += (char == "(") - (char == ")")
        if depth == 1 and char in "(,":
            parts.append("")
        else:
            parts[-1] += char
    *firsts, last = parts
    last, _, options = last.rpartition(")")
    return sorted(" ".join(part.split()) for part in (*firsts, last, options))


def test_a_second_migration_changes_nothing(path: Path) -> None:
    migrate(path)
    before = path.read_bytes()
    migrate(path)
    assert path.read_bytes() == before


def test_the_database_is_for_its_owner_alone(path: Path) -> None:
    migrate(path)
    with closing(open_for_writing(path)) as db, transaction(db):
        add_tenant(db)
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert len(modes) == 4  # the file, its log, the log's index, our lock
    assert set(modes.values()) == {0o600}


def test_several_processes_may_migrate_at_once(path: Path) -> None:
    code = "import sys, pathlib; from gateway.store.migrate import migrate as m; "
    code += "m(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-W", "error", "-c", code, str(path)]
    children = [subprocess.Popen(command) for _ in range(3)]
    assert [child.wait(30) for child in children] == [0, 0, 0]
    with closing(open_for_reading(path)) as db:
        assert db.execute("SELECT version_num FROM alembic_version").fetchall() == [(HEAD,)]


def test_a_migration_waits_for_another_one(path: Path) -> None:
    lock = os.open(path.with_name(path.name + ".migrate-lock"), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    waiting = threading.Thread(target=migrate, args=(path,))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    assert not path.exists()
    os.close(lock)
    waiting.join(10)
    assert path.exists()


def test_a_database_of_newer_code_is_refused(path: Path) -> None:
    migrate(path)
    with closing(open_for_writing(path)) as db:
        db.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreTooNew, match=r"schema 9999.*run the newer version"):
        migrate(path)


def test_what_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    path.write_text("precious notes " * 100)
    with pytest.raises(StoreUnavailable, match=r"can't be"):
        migrate(path)
    assert path.read_text() == "precious notes " * 100


def test_opening_does_not_create(path: Path) -> None:
    for open_ in (open_for_reading, open_for_writing):
        with pytest.raises(StoreUnavailable, match="can't be opened"):
            open_(path)
    assert not path.exists()


def test_a_reader_cannot_write(path: Path) -> None:
    migrate(path)
    with closing(open_for_reading(path)) as db, pytest.raises(sqlite3.OperationalError):
        db.execute("UPDATE directory_version SET version = 7")


def test_a_writing_connection_is_durable_and_checks_foreign_keys(path: Path) -> None:
    migrate(path)
    with closing(open_for_writing(path)) as db:
        names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        settings = [db.execute(f"PRAGMA {name}").fetchone()[0] for name in names]
    assert settings == ["wal", 2, 1, 5000]


def test_a_full_disk_is_told_as_the_store_s_fault(path: Path) -> None:
    migrate(path)
    with closing(open_for_writing(path)) as db:
        db.execute("PRAGMA max_page_count = 1")  # as many as there are: none is to be had
        full = pytest.raises(StoreUnavailable, match=r"can't be used: database or disk is full")
        with full, transaction(db):
            db.execute("CREATE TABLE large AS SELECT zeroblob(1000000)")
        assert not db.in_transaction
        with pytest.raises(IntegrityError), transaction(db):
            db.execute("INSERT INTO tenant (id, is_demo, created_at) VALUES ('tn_1', 0, 0)")


def test_every_table_is_strict(path: Path) -> None:
    migrate(path)
    with closing(open_for_reading(path)) as db:
        tables = db.execute(
            "SELECT name, strict FROM pragma_table_list WHERE schema = 'main' AND type <> 'view'"
        )
        lax = {name for name, strict in tables if not strict}
    assert lax == {"alembic_version", "sqlite_schema"}


@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO tenant (id, name, is_demo, created_at) VALUES ('tn_2', 'globex', 0, 0)",
        "UPDATE tenant SET weight = 2",
        "INSERT INTO api_key (id, tenant_id, digest, hint, name, created_at)"
        " VALUES ('key_2', 'tn_1', x'02', 'h', 'n', 0)",
        "UPDATE api_key SET revoked_at = 1",
        "DELETE FROM api_key",
        "INSERT INTO project (id, tenant_id, name, created_at) VALUES ('pr_1', 'tn_1', 'p', 0)",
        "INSERT INTO api_key_past_secret (digest, key_id, hint, valid_until)"
        " VALUES (x'02', 'key_1', 'h', 9)",
        "INSERT INTO limit_rule (scope_kind, scope_id, rpm, updated_at)"
        " VALUES ('tenant', 'tn_1', 9, 0)",
    ],
)
def test_any_change_of_a_tenant_or_key_moves_the_directory_version(path: Path, change: str) -> None:
    migrate(path)
    version = "SELECT version FROM directory_version"
    with closing(open_for_writing(path)) as db:
        add_tenant(db)
        add_key(db)
        (before,) = db.execute(version).fetchone()
        db.execute(change)
        assert db.execute(version).fetchone() == (before + 1,)


SECOND = '''"""Tenants have a colour.

More about it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "9998"
down_revision = "0004"


def upgrade() -> None:
    with op.batch_alter_table("tenant") as batch:
        batch.add_column(sa.Column("colour", sa.Text))
    op.execute("UPDATE tenant SET colour = 'red'")
'''


@pytest.fixture
def newer(tmp_path: Path) -> str:
    """Our migrations, and one more."""
    folder = tmp_path / "newer"
    shutil.copytree(Path(store.__file__).parent / "migrations", folder)
    (folder / "versions" / "9998_colour.py").write_text(SECOND)
    return str(folder)


def test_a_rehearsal_tells_what_would_run_and_changes_nothing(path: Path, newer: str) -> None:
    migrate(path)
    with closing(open_for_writing(path)) as db:
        add_tenant(db)
    before = path.read_bytes()
    found = rehearse(path, newer)
    assert (found.current, found.head) == (HEAD, "9998")
    (step,) = found.steps
    assert (step.revision, step.says) == ("9998", "Tenants have a colour.")
    assert "UPDATE tenant SET colour = 'red'" in step.sql
    assert any(line.startswith("ALTER TABLE tenant ADD COLUMN colour") for line in step.sql)
    assert not any(line.startswith("SELECT") for line in step.sql)
    assert found.rows_before == found.rows_after
    assert found.rows_before["tenant"] == 1
    assert path.read_bytes() == before
    assert not list(path.parent.glob(".rehearsal*"))


def test_a_rehearsal_without_a_database_starts_from_nothing(path: Path) -> None:
    found = rehearse(path)
    assert (found.current, found.head) == (None, HEAD)
    assert any(line.startswith("CREATE TABLE tenant") for line in found.steps[0].sql)
    assert not path.exists()


def test_a_rehearsal_finds_what_would_fail(path: Path, newer: str) -> None:
    migrate(path)
    script = Path(newer) / "versions" / "9998_colour.py"
    script.write_text(SECOND.replace("UPDATE tenant", "UPDATE nowhere"))
    with pytest.raises(StoreUnavailable, match="no such table: nowhere"):
        rehearse(path, newer)
    with pytest.raises(StoreUnavailable, match="no such table: nowhere"):
        migrate(path, newer)
    assert migrate(path) == [], "it was undone as a whole"


def test_before_a_migration_the_database_is_copied_and_three_copies_are_kept(
    path: Path, newer: str
) -> None:
    assert [step.revision for step in migrate(path)] == ["0001", "0002", "0003", HEAD]
    assert not (path.parent / "backups").exists(), "there was nothing to copy"
    for number in range(4):
        with closing(open_for_writing(path)) as db:
            add_tenant(db, f"t{number}", f"tn_{number}")
        assert [step.revision for step in migrate(path, newer)] == ["9998"]
        assert migrate(path, newer) == []
        with closing(open_for_writing(path)) as db:
            db.execute("ALTER TABLE tenant DROP COLUMN colour")
            db.execute("UPDATE alembic_version SET version_num = :head", {"head": HEAD})
    copies = sorted((path.parent / "backups").iterdir())
    assert [facts(copy).tenants for copy in copies] == [2, 3, 4]
    assert {facts(copy).revision for copy in copies} == {HEAD}
    assert {stat.S_IMODE(copy.stat().st_mode) for copy in copies} == {0o600}


def test_a_database_of_this_version_is_known_without_alembic(path: Path) -> None:
    """What each start and each command asks costs no library; `HEAD` is the newest migration."""
    assert not is_current(path)
    bring_up_to_date(path)
    assert is_current(path)
    assert rehearse(path).head == HEAD
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE alembic_version SET version_num = '9999'")
        db.commit()
    assert not is_current(path)
    with pytest.raises(StoreTooNew):
        bring_up_to_date(path)


@pytest.mark.parametrize("module", ["gateway.app", "gateway.cli.serving", "gateway.cli.accounts"])
def test_no_process_that_serves_holds_the_migrations_libraries(module: str) -> None:
    code = f"import sys, {module}; sys.exit('sqlalchemy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
