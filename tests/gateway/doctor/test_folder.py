"""What the doctor finds of the state folder, and of the clock."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec

from gateway.admin.key import ensure
from gateway.doctor import folder, machine
from gateway.doctor.finding import Patient
from gateway.store.connection import DATABASE
from runtime.config.models import ModelSettings
from runtime.config.sections import FileSettings
from runtime.settings import Settings
from tests.gateway.doctor.patients import levels, one, patient
from tests.postgres import Server


class AtClock:
    def __init__(self, us: int) -> None:
        self.us = us

    def now_us(self) -> int:
        return self.us


def test_a_clock_that_was_never_set(well: Patient) -> None:
    one(machine.clock(well, AtClock(0)), "error")
    one(machine.clock(well), "ok")


def test_a_folder_that_is_not_there_yet_is_fine(tmp_path: Path) -> None:
    settings = Settings(file=FileSettings(), config_path="", state_dir=tmp_path / "new")
    for check in (folder.state_folder, folder.store):
        one(check(Patient(settings, settings)), "ok")
    assert not (tmp_path / "new").exists()


def test_files_that_others_can_read(well: Patient) -> None:
    ensure(well.place.state_dir)
    one(folder.state_folder(well), "ok")
    (well.place.state_dir / "admin-key").chmod(0o644)
    well.place.state_dir.chmod(0o755)
    found = list(folder.state_folder(well))
    assert levels(found) == ["warning", "error"]
    assert found[1].todo == f"chmod 600 {well.place.state_dir / 'admin-key'}"


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    settings = Settings(file=FileSettings(), config_path="", state_dir=tmp_path / "state")
    one(folder.state_folder(Patient(settings, settings)), "error")


def test_a_damaged_store(well: Patient) -> None:
    assert "0 records" in one(folder.store(well), "ok").text
    path = well.place.state_dir / DATABASE
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.execute("PRAGMA journal_mode = DELETE")
        roots = db.execute("SELECT rootpage FROM sqlite_master WHERE tbl_name = 'usage_record'")
        pages = [page for (page,) in roots if page]
    data = bytearray(path.read_bytes())
    for page in pages:
        data[4096 * (page - 1) : 4096 * page] = os.urandom(4096)
    path.write_bytes(data)
    one(folder.store(well), "error")


def test_a_store_of_a_newer_version(well: Patient) -> None:
    with closing(sqlite3.connect(well.place.state_dir / DATABASE)) as db:
        db.execute("UPDATE alembic_version SET version_num = 'zzz'")
        db.commit()
    assert "zzz" in one(folder.store(well), "error").text


def test_a_record_of_the_future_gives_the_clock_away(well: Patient) -> None:
    with closing(sqlite3.connect(well.place.state_dir / DATABASE)) as db:
        db.execute(
            "INSERT INTO usage_record (id, request_id, tenant_id, api_key_id, operation, model_id,"
            " model_revision, streamed, boot_id, currency, input_price_pico,"
            " cached_input_price_pico, output_price_pico, opened_at, charge_at, state)"
            " VALUES ('u', 'r', 't', 'k', 'chat', 'm', '', 0, 'b', 'USD', 0, 0, 0, ?1, ?1, 'open')",
            (10**15,),
        )
        db.commit()
    assert list(folder.clock_and_store(well, AtClock(10**15))) == []
    one(folder.clock_and_store(well, AtClock(10**15 - 10**9)), "error")


def test_weights(tmp_path: Path) -> None:
    there, absent = tmp_path / "there", tmp_path / "absent"
    there.mkdir()
    (there / "config.json").write_text("{}")
    models = (
        ModelSettings(id="a", engine="embedded", path=str(there)),
        ModelSettings(id="b", engine="embedded", path=str(absent)),
        ModelSettings(id="c", engine="embedded", source="smollm2-135m-instruct"),
        ModelSettings(id="d", engine="fake"),
    )
    found = list(folder.models_weights(patient(tmp_path, models=models)))
    assert levels(found) == ["ok", "error", "warning"]


def test_a_store_of_postgresql(well: Patient, postgres_server: Server) -> None:
    """Its server is asked; a password is shown nowhere."""
    found = msgspec.structs.replace(
        well.place, store_url=postgres_server.new_database(migrated=True)
    )
    there = Patient(found, None)
    told = one(folder.store(there), "ok").text
    assert told.startswith("postgresql://bulkhead@127.0.0.1:")
    assert "0 records" in told
    assert list(folder.clock_and_store(there)) == []
    away = msgspec.structs.replace(found, store_url="postgresql://u:canary@127.0.0.1:1/db")
    fault = one(folder.store(Patient(away, None)), "error")
    assert "canary" not in fault.text
    assert "see that its server runs" in fault.todo
    empty = msgspec.structs.replace(found, store_url=postgres_server.new_database())
    assert (
        "is migrated at the next start" in one(folder.store(Patient(empty, None)), "warning").text
    )
