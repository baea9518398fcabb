"""What was in a store before migration 0003 is there after it; tenants and projects keep names."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from gateway import store
from gateway.store.address import Database, Postgres
from gateway.store.connection import open_for_writing, transaction
from gateway.store.errors import IntegrityError, StoreUnavailable
from gateway.store.migrate import migrate, needed
from gateway.store.postgres import migrating
from tests.gateway.accounts import add_tenant
from tests.gateway.test_store_0002 import LINE, RECORD
from tests.postgres import Server

SETTLE = """
UPDATE usage_record SET state = 'settled', seq = 1, outcome = 'completed', billable = 1,
  bill_reason = 'full_answer', settled_at = 9, usage_source = 'upstream_final',
  input_tokens = 0, cached_input_tokens = 0, output_tokens = 3, amount_pico = 300
WHERE id = 'ur_1'
"""
PROJECT = "INSERT INTO project (id, tenant_id, name, created_at) VALUES ('pr_1', 'tn_1', 'p', 0)"


def test_what_was_closed_before_has_no_claims_and_stays_closed(tmp_path: Path) -> None:
    folder = tmp_path / "before"
    shutil.copytree(Path(store.__file__).parent / "migrations", folder)
    for path in (folder / "versions").glob("0*.py"):
        if path.name[:4] > "0002":
            path.unlink()
    path = tmp_path / "store.db"
    migrate(path, str(folder))
    with closing(open_for_writing(path)) as db:
        add_tenant(db)
        db.execute(
            "INSERT INTO api_key (id, tenant_id, digest, hint, name, created_at)"
            " VALUES ('key_1', 'tn_1', x'01', 'h', 'n', 6)"
        )
        db.execute(RECORD, {"id": "ur_1", "at": 5})
        db.execute(LINE, {"id": "ur_1"})
        db.execute(SETTLE)
        (before,) = db.execute("SELECT * FROM usage_record").fetchall()
    assert migrate(path)[0].revision == "0003"
    with closing(open_for_writing(path)) as db:
        assert db.execute("SELECT * FROM usage_record").fetchall() == [(*before, None, None)]
        with pytest.raises(IntegrityError, match="does not change"), transaction(db):
            db.execute("UPDATE usage_record SET claimed_input_tokens = 1")


@pytest.mark.parametrize("table", ["tenant", "project"])
def test_a_name_that_exports_have_told_does_not_change(database: Database, table: str) -> None:
    """The same period and bound would give other bytes."""
    with closing(open_for_writing(database)) as db:
        with transaction(db):
            add_tenant(db)
            db.execute(PROJECT)
        with pytest.raises(IntegrityError, match=f"a {table} keeps its name"), transaction(db):
            db.execute(f"UPDATE {table} SET name = 'other'")
        with transaction(db):
            db.execute(f"UPDATE {table} SET name = name")
            db.execute("UPDATE tenant SET weight = 3")


def test_who_reads_for_long_is_told_of_and_nothing_is_changed(
    postgres_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an export does, or pg_dump: a migration must not have all that serves wait for it."""
    monkeypatch.setattr(migrating, "WAIT_S", 1)
    url = postgres_server.new_database(migrated=True)
    with psycopg.connect(url) as db:
        db.execute("UPDATE alembic_version SET version_num = '0002'")
        db.commit()
        db.execute("SELECT count(*) FROM usage_record")
        with pytest.raises(StoreUnavailable, match="let that end, and try again") as raised:
            migrate(Postgres(url))
    assert "ALTER TABLE" not in str(raised.value)
    assert needed(Postgres(url))[0].revision == "0003"
