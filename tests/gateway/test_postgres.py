"""PostgreSQL as the store: statements, sessions, faults, migrations."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg import errors

from gateway.clock import SYSTEM_CLOCK
from gateway.door import Door
from gateway.ledger import Ledger
from gateway.store.address import Postgres
from gateway.store.connection import (
    begin,
    directory_version,
    has_table,
    open_for_reading,
    open_for_writing,
    transaction,
)
from gateway.store.current import HEAD, bring_up_to_date, is_current
from gateway.store.errors import (
    IntegrityError,
    ReferenceViolated,
    StoreTooNew,
    StoreUnavailable,
    UniqueViolated,
)
from gateway.store.migrate import migrate, needed, rehearse
from gateway.store.postgres import session
from gateway.store.postgres.faults import as_ours
from gateway.store.postgres.statements import for_psycopg
from gateway.store.reader import read
from gateway.store.schema import metadata
from gateway.store.writer import Writer
from tests.gateway.accounts import add_key, add_tenant
from tests.gateway.records import COMPLETED, OPENING, fill, row
from tests.postgres import PASSWORD, Server


@pytest.fixture
def empty(postgres_server: Server) -> Iterator[Postgres]:
    address = Postgres(postgres_server.new_database())
    yield address
    address.close()


@pytest.fixture
def store(postgres_server: Server) -> Iterator[Postgres]:
    address = Postgres(postgres_server.new_database(migrated=True))
    yield address
    address.close()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("SELECT :a, :b_2", "SELECT %(a)s, %(b_2)s"),
        ("SELECT ':a', \":b\", 'it''s :c'", "SELECT ':a', \":b\", 'it''s :c'"),
        ("SELECT x::text, :a -- :no\n, 5 % :b", "SELECT x::text, %(a)s -- :no\n, 5 %% %(b)s"),
        ("SELECT '%' LIKE :a", "SELECT '%%' LIKE %(a)s"),
        ("VALUES (:a,:a)", "VALUES (%(a)s,%(a)s)"),
    ],
)
def test_a_statement_for_both(ours: str, theirs: str) -> None:
    assert for_psycopg(ours) == theirs


def test_the_password_is_shown_nowhere(store: Postgres) -> None:
    assert "canary" not in f"{store} {store!r} {store.url}"
    assert store.password == "canary-p@ss/word"
    wrong = Postgres(store.url, "wrong-canary")
    with pytest.raises(StoreUnavailable, match="can't be opened") as told:
        open_for_writing(wrong)
    assert "canary" not in str(told.value)
    assert PASSWORD not in str(told.value)
    other = Postgres("postgresql://u:canary-1@127.0.0.1:1/db?connect_timeout=2")
    with pytest.raises(StoreUnavailable, match=r"postgresql://u@127\.0\.0\.1:1/db can't") as told:
        open_for_reading(other)
    assert "canary" not in str(told.value)


def test_migrations_from_empty_end_at_the_schema(empty: Postgres, postgres_server: Server) -> None:
    from sqlalchemy import create_engine

    plain = Postgres(postgres_server.new_database())
    engine = create_engine("postgresql+psycopg://", creator=lambda: session.connect(plain))
    metadata.create_all(engine)
    engine.dispose()
    migrate(empty)
    assert _described(empty) == _described(plain)


def _described(address: Postgres) -> set[tuple[object, ...]]:
    """Columns, constraints and indexes, as the server tells them."""
    with closing(open_for_reading(address)) as db:
        found = {
            *db.execute(
                "SELECT table_name, column_name, data_type, is_nullable, column_default"
                " FROM information_schema.columns NATURAL JOIN information_schema.tables"
                " WHERE table_schema = 'public' AND table_type = 'BASE TABLE'"
            ).fetchall(),
            *db.execute(
                "SELECT cast(conrelid AS regclass)::text, conname, pg_get_constraintdef(oid)"
                " FROM pg_constraint WHERE connamespace = 'public'::regnamespace"
            ).fetchall(),
            *db.execute("SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'"),
        }
    return {row for row in found if "alembic_version" not in str(row)}


def test_a_rehearsal_tells_what_would_run_and_changes_nothing(empty: Postgres) -> None:
    assert not is_current(empty)
    assert [step.revision for step in needed(empty)] == ["0001", "0002", "0003", HEAD]
    found = rehearse(empty)
    assert (found.current, found.head) == (None, HEAD)
    assert any("CREATE TABLE usage_record" in line for line in found.steps[1].sql)
    assert found.rows_after["ledger_counter"] == 1
    with closing(open_for_reading(empty)) as db:
        assert not has_table(db, "tenant")


def test_several_may_migrate_at_once(empty: Postgres) -> None:
    several = [threading.Thread(target=bring_up_to_date, args=(empty,)) for _ in range(4)]
    for each in several:
        each.start()
    for each in several:
        each.join(60)
    assert is_current(empty)
    assert migrate(empty) == []


def test_a_database_of_newer_code_is_refused(store: Postgres) -> None:
    with closing(open_for_writing(store)) as db:
        db.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreTooNew, match=r"schema 9999.*run the newer version"):
        bring_up_to_date(store)


def test_faults_of_integrity_are_the_store_s(store: Postgres) -> None:
    with closing(open_for_writing(store)) as db:
        add_tenant(db)
        with pytest.raises(UniqueViolated, match="tenant"):
            add_tenant(db)
        with pytest.raises(ReferenceViolated, match="api_key"), transaction(db):
            add_key(db, "key_1", "nobody")
        with pytest.raises(IntegrityError, match="ck_tenant_is_demo"):
            db.execute("UPDATE tenant SET is_demo = 7")
        add_key(db)


def test_a_database_that_isn_t_ours_is_unavailable(empty: Postgres) -> None:
    with pytest.raises(StoreUnavailable, match="directory_version"):
        read(empty, directory_version)


def test_texts_and_numbers_come_back_as_from_sqlite(store: Postgres) -> None:
    with closing(open_for_writing(store)) as db:
        add_tenant(db, "nul\0inside")
        db.execute("UPDATE tenant SET is_demo = :yes", {"yes": True})
        row = db.execute("SELECT name, is_demo, sum(cast(:big AS BIGINT)) OVER () FROM tenant",
                         {"big": 2**62}).fetchone()  # fmt: skip
        assert row == ("nul\ufffdinside", 1, 2**62)
        assert isinstance(row[2], int)
        assert db.execute("SELECT digest FROM root_check").fetchall() == []


def test_texts_are_ordered_by_their_bytes(store: Postgres) -> None:
    """Whatever the language of the server, which this one's is English."""
    with closing(open_for_writing(store)) as db:
        for number, name in enumerate(["b", "B", "a", "~", "_", "A-1", "A1"]):
            add_tenant(db, name, f"tn_{number}")
        found = db.execute("SELECT name FROM tenant ORDER BY name").fetchall()
    assert [name for (name,) in found] == ["A-1", "A1", "B", "_", "a", "b", "~"]


def test_a_reader_cannot_write_and_sees_one_snapshot(store: Postgres) -> None:
    with closing(open_for_reading(store)) as reader, closing(open_for_writing(store)) as db:
        count = "SELECT count(*) FROM tenant"
        assert reader.execute(count).fetchone() == (0,)
        add_tenant(db)
        assert reader.execute(count).fetchone() == (0,)
        with pytest.raises(StoreUnavailable, match="read-only"):
            reader.execute("UPDATE tenant SET is_demo = 1")
    assert read(store, lambda db: db.execute(count).fetchone()) == (1,)


def test_writers_wait_for_each_other(store: Postgres) -> None:
    with closing(open_for_writing(store)) as one, closing(open_for_writing(store)) as other:
        done = threading.Event()

        def add() -> None:
            with transaction(other):
                add_tenant(other, "globex", "tn_2")
            done.set()

        thread = threading.Thread(target=add)
        with transaction(one):
            add_tenant(one)
            thread.start()
            assert not done.wait(0.2)
        thread.join(30)
        assert done.is_set()


def test_what_was_restored_is_another_directory(store: Postgres, postgres_server: Server) -> None:
    """The same count, and other tables: the keys are read again."""
    other = Postgres(postgres_server.new_database())
    migrate(other)
    with closing(other):
        assert read(store, directory_version) != read(other, directory_version)


async def test_the_writer_connects_again_after_its_session_was_ended(
    store: Postgres, postgres_server: Server
) -> None:
    writer = Writer(store)
    writer.start()
    await writer.run(lambda db: add_tenant(db))
    _end_sessions(postgres_server)
    await writer.run(lambda db: add_tenant(db, "globex", "tn_2"))

    def ended_inside(db: object) -> None:
        _end_sessions(postgres_server)
        add_tenant(db, "initech", "tn_3")  # type: ignore[arg-type]

    with pytest.raises(StoreUnavailable, match="could not be written to"):
        await writer.run(ended_inside)
    await writer.run(lambda db: add_tenant(db, "hooli", "tn_4"))
    await asyncio.to_thread(writer.close)
    names = read(store, lambda db: db.execute("SELECT name FROM tenant ORDER BY id").fetchall())
    assert names == [("acme",), ("globex",), ("hooli",)]


def _end_sessions(server: Server) -> None:
    with psycopg.connect(server.url("postgres"), autocommit=True) as db:
        db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'bulkhead' AND datname = ANY("
            " SELECT datname FROM pg_database WHERE datname LIKE 'test_%')"
        )


def test_one_that_stands_still_inside_a_transaction_holds_up_nobody_for_long(
    store: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_LIMITS", "SET idle_in_transaction_session_timeout = '300ms'")
    with closing(open_for_writing(store)) as still, closing(open_for_writing(store)) as other:
        begin(still)
        add_tenant(still)
        with transaction(other):  # waits until the server has ended the first
            add_tenant(other, "globex", "tn_2")
        with pytest.raises(StoreUnavailable):
            add_key(still)
    assert read(store, lambda db: db.execute("SELECT id FROM tenant").fetchall()) == [("tn_2",)]


@pytest.mark.parametrize(("theirs", "ours"), [("off", "on"), ("remote_apply", "remote_apply")])
def test_a_commit_is_durable_whatever_the_server_does_for_others(
    store: Postgres, postgres_server: Server, theirs: str, ours: str
) -> None:
    name = str(store).rpartition("/")[2]
    with psycopg.connect(postgres_server.url("postgres"), autocommit=True) as db:
        db.execute(f"ALTER DATABASE {name} SET synchronous_commit = {theirs}".encode())
    with closing(open_for_writing(store)) as writing:
        assert writing.execute("SHOW synchronous_commit").fetchone() == (ours,)


def test_a_standby_is_no_store(postgres_server: Server) -> None:
    url = postgres_server.new_database(migrated=True)
    name = url.rpartition("/")[2]
    with psycopg.connect(postgres_server.url("postgres"), autocommit=True) as db:
        db.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on".encode())
    with pytest.raises(StoreUnavailable, match="read-only"):
        open_for_writing(Postgres(url))


def test_a_store_without_psycopg_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "gateway.store.postgres.session", None)
    with pytest.raises(StoreUnavailable, match=r"pip install 'bulkhead\[postgres\]'"):
        open_for_writing(Postgres("postgresql://u@h/db"))


@pytest.mark.parametrize(
    "code",
    ["53100", "53200", "53300", "25006", "57P01", "57P03", "57014", "40P01", "08006", "58030",
     "XX001", "25P03", "42501", "55P03"],
)  # fmt: skip
def test_what_is_the_server_s_fault_is_the_store_s(code: str) -> None:
    """A full disk, no memory, too many sessions, read-only, shutting down, cut off, damaged…"""
    error = errors.lookup(code)("x canary-p@ss/word y")
    told = as_ours(error, Postgres(f"postgresql://u:{PASSWORD}@h/db"))
    assert isinstance(told, StoreUnavailable)
    assert "canary" not in str(told)


async def test_what_could_not_be_settled_on_a_server_is_closed_once_that_works(
    store: Postgres, postgres_server: Server
) -> None:
    fill(store)
    writer = Writer(store)
    writer.start()
    ledger = Ledger(writer, SYSTEM_CLOCK, "boot_1", Door(0))
    lost, kept = await ledger.open(OPENING), await ledger.open(replace(OPENING, request_id="r2"))
    _make_read_only(postgres_server, store, "on")
    with pytest.raises(StoreUnavailable):
        await ledger.settle(lost, COMPLETED)
    with pytest.raises(StoreUnavailable):
        await ledger.open(replace(OPENING, request_id="r3"))
    assert ledger.in_doubt.is_set()
    _make_read_only(postgres_server, store, "off")
    assert await ledger.close_left_open() == 1
    assert not await ledger.settle(lost, COMPLETED)
    assert await ledger.settle(kept, COMPLETED)
    await asyncio.to_thread(writer.close)
    assert (row(store, lost.id)["state"], row(store, lost.id)["billable"]) == ("orphaned", 0)


def _make_read_only(server: Server, store: Postgres, is_on: str) -> None:
    name = str(store).rpartition("/")[2]
    with psycopg.connect(server.url("postgres"), autocommit=True) as db:
        db.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = {is_on}".encode())
    _end_sessions(server)
