"""Jobs by the clock: in one process at a time, never twice at once, and never in the way."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from gateway.crons import crons as module
from gateway.crons.crons import Book, Crons, last_look, run_once
from runtime.config.models import ModelSettings
from runtime.config.sections import CronSettings, FileSettings, TriggerSettings
from runtime.settings import Settings

EVERY_MINUTE = CronSettings(cron="* * * * *", run="warm", model="m")
START = datetime.datetime(2026, 11, 30, 2, 59, 30, tzinfo=datetime.UTC)


class Clock:
    def __init__(self) -> None:
        self.now = START

    def now_us(self) -> int:
        return int(self.now.timestamp() * 1_000_000)

    def go(self, seconds: float) -> None:
        self.now += datetime.timedelta(seconds=seconds)


class Warmer:
    """Warms when it is let."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.fault: Exception | None = None

    async def __call__(self, model: str) -> None:
        self.begun += 1
        await self.may_end.wait()
        if self.fault:
            raise self.fault
        self.ended += 1


def settings_of(state_dir: Path, *crons: CronSettings) -> Settings:
    state_dir.mkdir(exist_ok=True)
    models = (ModelSettings(id="m", engine="fake"),)
    file = FileSettings(models=models, triggers=TriggerSettings(crons=crons))
    return Settings(file=file, config_path="", state_dir=state_dir)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_of(tmp_path / "state", EVERY_MINUTE)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def warmer() -> AsyncIterator[Warmer]:
    warmer = Warmer()
    yield warmer
    warmer.may_end.set()


Make = Callable[[Settings, Warmer], Crons]


@pytest.fixture
def crons_of(clock: Clock) -> Iterator[Make]:
    made: list[Crons] = []

    def make(settings: Settings, warmer: Warmer) -> Crons:
        made.append(Crons(lambda: settings, warmer, clock))
        return made[-1]

    yield make
    for crons in made:
        crons.close()


async def test_a_job_runs_at_its_boundary_and_is_noted(
    settings: Settings, warmer: Warmer, clock: Clock, crons_of: Make
) -> None:
    crons = crons_of(settings, warmer)
    crons.look()
    clock.go(29)
    crons.look()
    assert warmer.begun == 0
    with capture_logs() as logs:
        clock.go(2)
        crons.look()
        await until(lambda: warmer.ended == 1)
        await until(lambda: bool(logs))
    (line,) = logs
    assert (line["event"], line["run"], line["said"]) == ("cron_done", "warm", "m has a host")
    last = Book(settings.state_dir).last(EVERY_MINUTE)
    assert last is not None
    assert last.ok
    assert last.at == last.closed == START.replace(hour=3, minute=0, second=0)
    crons.look()
    await asyncio.sleep(0)
    assert warmer.begun == 1


async def test_no_boundary_comes_twice_if_the_clock_is_set_back(
    settings: Settings, warmer: Warmer, clock: Clock, crons_of: Make
) -> None:
    crons = crons_of(settings, warmer)

    def rests() -> bool:
        return all(task.done() for task in crons._running.values())

    crons.look()
    clock.go(31)
    crons.look()
    await until(lambda: warmer.ended == 1 and rests())
    clock.go(-3600)
    for _ in range(60):
        crons.look()
        clock.go(60)
    await asyncio.sleep(0)
    assert warmer.begun == 1, "each minute of that hour has had its run"
    clock.go(60)
    crons.look()
    await until(lambda: warmer.ended == 2 and rests())
    clock.go(-30 * 24 * 3600)
    crons.look()
    clock.go(60)
    crons.look()
    await until(lambda: warmer.ended == 3)  # it was wrong for a long time: nobody waits for that


async def test_a_job_never_overlaps_itself(
    settings: Settings, warmer: Warmer, clock: Clock, crons_of: Make
) -> None:
    crons = crons_of(settings, warmer)
    crons.look()
    warmer.may_end.clear()
    with capture_logs() as logs:
        for _ in range(3):
            clock.go(60)
            crons.look()
            await asyncio.sleep(0.01)
    assert warmer.begun == 1
    assert [line["event"] for line in logs] == ["cron_skipped"] * 2
    warmer.may_end.set()
    await until(lambda: warmer.ended == 1)
    clock.go(60)
    crons.look()
    await until(lambda: warmer.begun == 2)


async def test_a_job_that_fails_is_told_and_runs_again(
    settings: Settings, warmer: Warmer, clock: Clock, crons_of: Make
) -> None:
    crons = crons_of(settings, warmer)
    crons.look()
    warmer.fault = ZeroDivisionError("of all things")
    with capture_logs() as logs:
        clock.go(60)
        crons.look()
        await until(lambda: bool(logs))
    assert (logs[0]["event"], logs[0]["log_level"]) == ("cron_failed", "error")
    assert logs[0]["said"] == "ZeroDivisionError: of all things"
    last = Book(settings.state_dir).last(EVERY_MINUTE)
    assert last is not None
    assert (last.ok, last.closed) == (False, None)
    warmer.fault = None
    clock.go(60)
    crons.look()
    await until(lambda: warmer.ended == 1)


async def test_what_was_done_before_a_failure_is_remembered(
    settings: Settings, warmer: Warmer, clock: Clock, crons_of: Make
) -> None:
    """So that the next usage file begins where the last one ended."""
    first = await run_once(EVERY_MINUTE, clock.now, settings, warmer, clock)
    warmer.fault = ValueError("x")
    clock.go(60)
    second = await run_once(EVERY_MINUTE, clock.now, settings, warmer, clock)
    assert (first.closed, second.closed) == (START, START)


async def test_one_process_at_a_time_and_the_next_goes_on_where_it_was(
    settings: Settings, warmer: Warmer, clock: Clock, crons_of: Make
) -> None:
    """A boundary between the last look of the one and the first of the other isn't missed."""
    old, new = Warmer(), warmer
    following = asyncio.ensure_future(crons_of(settings, old).follow())
    await asyncio.sleep(0)
    other = crons_of(settings, new)
    clock.go(5)
    other.look()
    following.cancel()
    await asyncio.wait([following])
    clock.go(40)
    other.look()
    await until(lambda: new.ended == 1)
    assert old.begun == 0


async def test_the_state_folder_says_whose_turn_it_is(
    settings: Settings, warmer: Warmer, clock: Clock, crons_of: Make, tmp_path: Path
) -> None:
    first, second = crons_of(settings, warmer), crons_of(settings, Warmer())
    elsewhere = Warmer()
    third = crons_of(settings_of(tmp_path / "other", EVERY_MINUTE), elsewhere)
    for crons in (first, second, third):
        crons.look()
    clock.go(60)
    for crons in (second, first, third):
        crons.look()
    await until(lambda: warmer.ended == elsewhere.ended == 1)


async def test_jobs_of_a_new_deployment_run_from_then_on(
    settings: Settings, warmer: Warmer, clock: Clock, crons_of: Make
) -> None:
    current = settings_of(settings.state_dir)
    crons = Crons(lambda: current, warmer, clock)
    crons.look()
    assert not (settings.state_dir / "crons.lock").exists(), "nothing to run, nothing to own"
    clock.go(3600)
    current = settings
    crons.look()
    await asyncio.sleep(0.01)
    assert warmer.begun == 0, "what was due before it was deployed isn't made up"
    clock.go(60)
    crons.look()
    await until(lambda: warmer.ended == 1)
    crons.close()


async def test_a_job_that_runs_at_the_end_is_cancelled(
    settings: Settings, warmer: Warmer, clock: Clock, crons_of: Make
) -> None:
    warmer.may_end.clear()
    crons = crons_of(settings, warmer)
    crons.look()
    clock.go(60)
    following = asyncio.ensure_future(crons.follow())
    await until(lambda: warmer.begun == 1)
    following.cancel()
    async with asyncio.timeout(30):
        await asyncio.wait([following])
    assert warmer.ended == 0


async def test_a_folder_that_cannot_be_written_to_is_told_once_and_looked_at_again(
    settings: Settings, warmer: Warmer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.001)
    looks = 0

    def asked() -> Settings:
        nonlocal looks
        looks += 1
        return settings

    crons = Crons(asked, warmer, clock)
    settings.state_dir.rmdir()
    with capture_logs() as logs:
        following = asyncio.create_task(crons.follow())
        await until(lambda: looks > 3)
    assert [line["event"] for line in logs] == ["crons_cannot_look"]
    settings.state_dir.mkdir()
    before = looks
    await until(lambda: looks > before + 1)
    clock.go(60)
    await until(lambda: warmer.ended == 1)
    following.cancel()
    await asyncio.wait({following})


@pytest.mark.parametrize(
    ("noted_s_ago", "goes_on_s_ago"),
    [(1, 1), (299, 299), (301, 0), (-5, 0)],
    ids=["a takeover", "a restart", "an absence", "a clock that was set back"],
)
def test_where_to_go_on(noted_s_ago: int, goes_on_s_ago: int) -> None:
    noted = START - datetime.timedelta(seconds=noted_s_ago)
    expected = START - datetime.timedelta(seconds=goes_on_s_ago)
    assert last_look(noted.isoformat(), START) == expected


@pytest.mark.parametrize("noted", ["", "nonsense", "2026-11-30T02:59:00"])
def test_a_note_that_says_nothing_is_no_note(noted: str) -> None:
    assert last_look(noted, START) == START


async def test_the_book_is_by_what_a_job_does(settings: Settings, warmer: Warmer) -> None:
    run = await run_once(EVERY_MINUTE, START, settings, warmer, Clock())
    book = Book(settings.state_dir)
    assert book.last(EVERY_MINUTE) == run
    assert book.last(msgspec.structs.replace(EVERY_MINUTE, keep=3)) == run
    assert book.last(msgspec.structs.replace(EVERY_MINUTE, model="other")) is None
    (path,) = (settings.state_dir / "crons").iterdir()
    path.write_text("{")
    assert book.last(EVERY_MINUTE) is None
