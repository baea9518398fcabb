"""What triggers run: backups that are kept, usage files without gap or overlap, warm models."""

from __future__ import annotations

import asyncio
import csv
import datetime
import stat
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from gateway.backups import archive, backup
from gateway.crons import jobs
from gateway.crons.jobs import carry_out
from gateway.relay.place import Place
from gateway.relay.placement import Placement
from gateway.relay.transport import Transport
from gateway.store.connection import open_for_writing
from gateway.store.migrate import migrate
from gateway.store.records import next_seq
from gateway.usage import files as usage_files
from gateway.usage.calendar import PeriodName, named_period, us
from gateway.usage.files import PeriodOpen
from gateway.usage.manifest import public_key, signing_key, verify
from runtime import keyring
from runtime.config.models import ModelSettings
from runtime.config.sections import CronSettings, FileSettings
from runtime.settings import Settings
from tests.gateway.accounts import add_key, add_tenant

OPENED = (
    "INSERT INTO usage_record (id, request_id, tenant_id, api_key_id, operation, model_id,"
    " model_revision, streamed, boot_id, currency, input_price_pico, cached_input_price_pico,"
    " output_price_pico, opened_at, charge_at, state) VALUES (?1, 'req_' || ?1, 'tn_' || ?2,"
    " 'key_' || ?2, 'chat', 'm', '', 0, 'b', 'USD', 0, 0, 0, ?3, ?3, 'open')"
)
CLOSE = (
    "UPDATE usage_record SET state = 'settled', seq = :seq, outcome = 'completed', billable = 0,"
    " bill_reason = 'x', settled_at = 1, usage_source = 'none', amount_pico = 0 WHERE id = :id"
)


def at(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(f"2026-11-{text}").replace(tzinfo=datetime.UTC)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    state = tmp_path / "state"
    state.mkdir()
    migrate(state / "bulkhead.db")
    keyring.load(state)
    with closing(open_for_writing(state / "bulkhead.db")) as db:
        for name in ("acme", "globex"):
            add_tenant(db, name, f"tn_{name}")
            key = (f"key_{name}", f"tn_{name}", name.encode())
            add_key(db, *key)
    file = FileSettings(name="ours", models=(ModelSettings(id="m", engine="fake"),))
    return Settings(file=file, config_path=str(tmp_path / "bulkhead.toml"), state_dir=state)


def enter(settings: Settings, record_id: str, tenant: str, when: datetime.datetime) -> None:
    with closing(open_for_writing(settings.state_dir / "bulkhead.db")) as db:
        db.execute(OPENED, (record_id, tenant, us(when)))


def close(settings: Settings, record_id: str) -> None:
    with closing(open_for_writing(settings.state_dir / "bulkhead.db")) as db:
        db.execute(CLOSE, {"id": record_id, "seq": next_seq(db)})


def used(settings: Settings, record_id: str, tenant: str, when: datetime.datetime) -> None:
    enter(settings, record_id, tenant, when)
    close(settings, record_id)


async def nobody(model: str) -> None:
    raise AssertionError(model)


async def export(settings: Settings, when: str, closed: str | None = None, fmt: str = "csv") -> str:
    job = CronSettings(
        cron="0 3 * * *", run="usage-export", to="out", format="csv" if fmt == "csv" else "jsonl"
    )
    return await carry_out(job, at(when), at(closed) if closed else None, settings, nobody)


def files(settings: Settings) -> dict[str, list[str]]:
    """The ids in each file."""
    found = {}
    for path in sorted((settings.folder / "out").glob("*.csv")):
        with path.open(newline="") as file:
            found[path.name] = [row["record_id"] for row in csv.DictReader(file)]
    return found


async def test_backups_are_written_and_the_last_are_kept(settings: Settings) -> None:
    job = CronSettings(cron="0 3 * * *", run="backup", to="kept", keep=2)
    folder = settings.folder / "kept"
    folder.mkdir()
    (folder / "ours-by-hand.tar.gz").touch()
    (folder / ".ours-20261101T0300Z.tar.gz.17").touch()  # left by a killed one
    for day in (27, 28, 29, 30):
        said = await carry_out(job, at(f"{day}T03:00"), None, settings, nobody)
    assert said == f"wrote {folder / 'ours-20261130T0300Z.tar.gz'}"
    names = ["ours-20261129T0300Z.tar.gz", "ours-20261130T0300Z.tar.gz", "ours-by-hand.tar.gz"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert archive.verify(folder / names[1]).store.tenants == 2
    assert stat.S_IMODE((folder / names[1]).stat().st_mode) == 0o600


async def test_a_backup_waits_for_another_and_can_be_cancelled_meanwhile(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that stops must not wait for whoever makes the other one."""
    monkeypatch.setattr(jobs, "POLL_S", 0.01)
    job = CronSettings(cron="0 3 * * *", run="backup", to="kept")

    async def unused(model: str) -> None:
        raise AssertionError(model)

    def begin() -> asyncio.Task[str]:
        return asyncio.ensure_future(carry_out(job, at("30T03:00"), None, settings, unused))

    with backup.alone(settings.state_dir):
        cancelled, waits = begin(), begin()
        await asyncio.sleep(0.1)
        cancelled.cancel()
        async with asyncio.timeout(30):
            await asyncio.wait({cancelled})
        assert cancelled.cancelled()
        assert not waits.done()
    async with asyncio.timeout(30):
        assert (await waits).startswith("wrote ")


async def test_usage_files_hold_each_record_once(settings: Settings) -> None:
    used(settings, "before", "acme", at("29T02:59:59"))
    used(settings, "first", "acme", at("29T03:00:00"))
    used(settings, "last", "acme", at("30T02:59:59"))
    used(settings, "after", "acme", at("30T03:00:00"))
    used(settings, "theirs", "globex", at("29T12:00"))
    assert (await export(settings, "29T03:00")).startswith("wrote 2 files")
    await export(settings, "30T03:00")
    assert files(settings) == {
        "usage-acme-20261128T0300Z-20261129T0300Z.csv": ["before"],
        "usage-acme-20261129T0300Z-20261130T0300Z.csv": ["first", "last"],
        "usage-globex-20261128T0300Z-20261129T0300Z.csv": [],
        "usage-globex-20261129T0300Z-20261130T0300Z.csv": ["theirs"],
    }


async def test_after_an_absence_one_file_holds_all_that_was_missed(settings: Settings) -> None:
    used(settings, "missed", "acme", at("28T05:00"))
    used(settings, "last", "acme", at("30T02:00"))
    await export(settings, "30T03:00", closed="28T03:00")
    name = "usage-acme-20261128T0300Z-20261130T0300Z.csv"
    assert files(settings)[name] == ["missed", "last"]


async def test_a_period_that_was_written_is_not_written_again(settings: Settings) -> None:
    used(settings, "one", "acme", at("29T12:00"))
    await export(settings, "30T03:00")
    path = settings.folder / "out" / "usage-acme-20261129T0300Z-20261130T0300Z.csv"
    path.write_text("as it was sent")
    assert (await export(settings, "30T03:00")).startswith("wrote 0 files")
    assert path.read_text() == "as it was sent"
    for when in ("30T03:00", "29T03:00"):
        assert "written before" in await export(settings, when, closed="30T03:00")


async def test_last_month_for_all_tenants_together(settings: Settings) -> None:
    """By FOCUS, with a manifest; run again, it's there."""
    used(settings, "one", "acme", at("29T12:00"))
    for fmt, suffix in (("focus", "focus-1.4.csv"), ("parquet", "focus-1.4.parquet")):
        job = CronSettings(
            cron="0 6 3 * *",
            run="usage-export",
            to="out",
            format="focus" if fmt == "focus" else "parquet",
            focus_version="1.4",
            period="last-month",
            tenants="together",
        )
        december = datetime.datetime(2026, 12, 3, 6, tzinfo=datetime.UTC)
        said = await carry_out(job, december, None, settings, nobody)
        assert said == "wrote 1 file for 2026-11-01T00:00Z to 2026-12-01T00:00Z"
        assert "wrote 0 files" in await carry_out(job, december, None, settings, nobody)
        name = f"usage-20261101T0000Z-20261201T0000Z.{suffix}"
        folder = settings.folder / "out"
        assert (folder / name).exists()
        key = public_key(signing_key(keyring.load(settings.state_dir)))
        (entry,) = verify(folder / f"{name}.manifest.json", key).files
        assert entry.name == name


@pytest.mark.parametrize(
    ("period", "start", "end"),
    [
        ("last-hour", "2026-02-28T23:00", "2026-03-01T00:00"),
        ("yesterday", "2026-02-28T00:00", "2026-03-01T00:00"),
        ("last-month", "2026-02-01T00:00", "2026-03-01T00:00"),
    ],
)
def test_the_last_period_is_whole(period: PeriodName, start: str, end: str) -> None:
    now = datetime.datetime(2026, 3, 1, 0, 59, 59, 7, tzinfo=datetime.UTC)
    found = [f"{moment:%Y-%m-%dT%H:%M}" for moment in named_period(period, now)]
    assert found == [start, end]


async def test_json_lines(settings: Settings) -> None:
    used(settings, "one", "acme", at("29T12:00"))
    await export(settings, "30T03:00", fmt="jsonl")
    path = settings.folder / "out" / "usage-acme-20261129T0300Z-20261130T0300Z.jsonl"
    lines = path.read_bytes().splitlines()
    assert [msgspec.json.decode(line)["record_id"] for line in lines] == ["one"]


async def test_a_period_is_written_when_its_last_request_has_ended(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_files, "POLL_S", 0.01)
    enter(settings, "long", "acme", at("30T02:59:59"))
    enter(settings, "later", "acme", at("30T03:00:00"))
    exporting = asyncio.ensure_future(export(settings, "30T03:00"))
    await asyncio.sleep(0.2)
    assert not exporting.done()
    assert not (settings.folder / "out").exists()
    close(settings, "long")
    async with asyncio.timeout(30):
        await exporting
    assert files(settings)["usage-acme-20261129T0300Z-20261130T0300Z.csv"] == ["long"]


async def test_waiting_for_a_period_is_bounded(settings: Settings) -> None:
    enter(settings, "long", "acme", at("30T02:00"))
    with pytest.raises(PeriodOpen, match="the next run writes it"):
        await usage_files.closed(settings.state_dir / "bulkhead.db", at("30T03:00"), 0.05)


async def test_a_file_that_can_t_be_written_leaves_no_part(
    settings: Settings, tmp_path: Path
) -> None:
    def chunks() -> object:
        yield b"half"
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        usage_files.write_whole(tmp_path / "x.csv", chunks())  # type: ignore[arg-type]
    assert not list(tmp_path.glob("*x.csv*"))


async def test_warm_waits_for_a_host_and_takes_no_room(settings: Settings) -> None:
    placement = Placement()
    asked: list[str] = []
    placement.on_wait = lambda: asked.append("demand")
    job = CronSettings(cron="0 3 * * *", run="warm", model="m")
    warming = asyncio.ensure_future(
        carry_out(job, at("30T03:00"), None, settings, lambda m: jobs.warm(placement, m))
    )
    await asyncio.sleep(0.05)
    assert asked == ["demand"]
    assert placement.line("m").num_waiting == 1
    place = Place("h", "http://host/v1", Transport("/nowhere.sock"))
    placement.line("m").set_places([place])
    assert await warming == "m has a host"
    assert place.in_flight == 0
    await jobs.warm(placement, "m")
    assert (asked, place.in_flight) == (["demand"], 0)
