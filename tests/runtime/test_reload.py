"""A process that follows deployments: what it applies, and what it does when that can't be done."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from runtime.deploy import reload as module
from runtime.deploy.reload import Start, Told, following, load_current
from runtime.deploy.running import Sign, running
from runtime.deployments import Deployments, NoDeployment, Origin
from runtime.rundir import runtime_dir
from runtime.settings import ConfigError, Settings

MODEL = '[[models]]\nid = "echo"\nengine = "fake"\n'
SECRET = (
    MODEL
    + '[[models]]\nid = "m"\nengine = "openai"\ncache = "salted"\nurl = "http://a.test/v1"\n'
    + ('api_key_secret = "ONLY_THERE"\n')
)


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(module, "POLL_S", 0.001)
    monkeypatch.delenv("BULKHEAD_PORT", raising=False)
    return tmp_path / "state"


def deploy(state_dir: Path, name: str, text: str = MODEL) -> None:
    book = Deployments(state_dir)
    with book.writing():
        book.add(f'name = "{name}"\n{text}', Origin(config_path="/etc/b.toml"), by="a test")


def start(state_dir: Path) -> Start:
    return load_current(state_dir, dev=False)


def test_a_start_takes_the_current_deployment(state_dir: Path) -> None:
    with pytest.raises(NoDeployment, match="nothing was deployed"):
        start(state_dir)
    for name in ("one", "two"):
        deploy(state_dir, name)
    found = start(state_dir)
    assert (found.settings.file.name, found.number, found.fault) == ("two", 2, "")
    assert found.settings.config_path == "/etc/b.toml"
    assert found.settings.state_dir == state_dir


def test_a_start_goes_back_to_the_newest_that_can_be_used(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was good for who deployed it, who had the secret; this process hasn't."""
    deploy(state_dir, "good")
    deploy(state_dir, "first", SECRET)
    deploy(state_dir, "second", SECRET)
    found = start(state_dir)
    assert (found.settings.file.name, found.number, found.current.number) == ("good", 1, 3)
    assert "ONLY_THERE" in found.fault
    monkeypatch.setenv("ONLY_THERE", "sk-1")
    assert start(state_dir).settings.secrets == {"ONLY_THERE": "sk-1"}


def test_a_start_without_any_that_can_be_used_tells_of_the_current_one(state_dir: Path) -> None:
    deploy(state_dir, "a", "[[models]]\nid = 7\n")
    deploy(state_dir, "b", SECRET)
    with pytest.raises(ConfigError, match="ONLY_THERE"):
        start(state_dir)


def put_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "an empty pointer": lambda folder: (folder / "current").write_bytes(b""),
    "a pointer to nothing": lambda folder: (folder / "current").write_text(
        '{"number":0,"change":9}'
    ),
    "a folder for a pointer": lambda folder: put_folder(folder / "current"),
    "no pointer": lambda folder: (folder / "current").unlink(),
    "an empty record": lambda folder: (folder / "0002.json").write_bytes(b""),
    "a text that isn't one": lambda folder: (folder / "0002.toml").write_bytes(b"\xff"),
    "a text that was cut off": lambda folder: (folder / "0002.toml").write_text("[[models"),
    "no text": lambda folder: (folder / "0002.toml").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_runs_goes_on_in_a_new_process_whatever_is_damaged(
    state_dir: Path, damage: Callable[[Path], object]
) -> None:
    """As its parent told it; without that, with the newest that can be used."""
    for name in ("one", "two"):
        deploy(state_dir, name)
    runs = start(state_dir).settings
    damage(state_dir / "deployments")
    told = Told(runs.text, runs.origin, 2)
    found = load_current(state_dir, dev=False, told=told)
    assert (found.settings.file.name, found.number) == ("two", 2)
    assert found.settings.config_path == "/etc/b.toml"
    assert found.fault
    alone = start(state_dir)
    assert alone.number in (1, 2)
    assert alone.fault == found.fault


def test_what_a_process_is_told_comes_after_what_is_deployed(state_dir: Path) -> None:
    deploy(state_dir, "one")
    runs = start(state_dir).settings
    deploy(state_dir, "two")
    found = load_current(state_dir, dev=False, told=Told(runs.text, runs.origin, 1))
    assert (found.settings.file.name, found.number, found.fault) == ("two", 2, "")


def test_all_of_it_gone_and_nothing_told(state_dir: Path) -> None:
    deploy(state_dir, "one")
    folder = state_dir / "deployments"
    runs = start(state_dir).settings
    shutil.rmtree(folder)
    found = load_current(state_dir, dev=False, told=Told(runs.text, runs.origin, 1))
    assert (found.settings.file.name, "nothing was deployed" in found.fault) == ("one", True)
    folder.mkdir()
    (folder / "current").write_text('{"number":0,"change":9}')
    with pytest.raises(NoDeployment, match="`bulkhead deploy` makes"):
        start(state_dir)


class Process:
    """Something that follows, and remembers what it was told."""

    def __init__(self, sign: Sign) -> None:
        self.sign = sign
        self.names: list[str] = []
        self.broken = False

    async def apply(self, settings: Settings, number: int) -> None:
        if self.broken:
            raise RuntimeError("a listener fell over")
        self.names.append(settings.file.name)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.001)

    async def has_looked_at(self, change: int) -> None:
        await self.until(lambda: self.sign.shown.change == change)


@asynccontextmanager
async def process_of(state_dir: Path) -> AsyncIterator[Process]:
    process = Process(Sign(state_dir, "gateway", dev=False))
    async with following(start(state_dir), process.sign, process.apply):
        yield process


async def test_each_deployment_is_applied_once_and_shown(state_dir: Path) -> None:
    deploy(state_dir, "one")
    async with process_of(state_dir) as process:
        await process.has_looked_at(1)
        assert (process.names, process.sign.shown.number) == ([], 1), "it started with that"
        deploy(state_dir, "two")
        await process.has_looked_at(2)
        assert (process.names, process.sign.shown.number) == (["two"], 2)
        deploy(state_dir, "two")
        await process.has_looked_at(3)
        assert process.names == ["two", "two"], "unchanged, but its secrets may differ"


async def test_what_can_t_be_loaded_changes_nothing_and_is_shown(state_dir: Path) -> None:
    deploy(state_dir, "one")
    async with process_of(state_dir) as process:
        deploy(state_dir, "bad", SECRET)
        await process.has_looked_at(2)
        assert (process.names, process.sign.shown.number) == ([], 1)
        assert "ONLY_THERE" in process.sign.shown.fault
        assert [*process.sign.shown.lacks] == ["ONLY_THERE"]
        deploy(state_dir, "worse", SECRET + "[limits]\nbogus = 1\nwall_s = -1\n")
        await process.has_looked_at(3)
        assert not process.sign.shown.lacks, "the secret alone would not mend it"
        deploy(state_dir, "three")
        await process.has_looked_at(4)
        assert (process.names, process.sign.shown.number) == (["three"], 4)
        assert process.sign.shown.fault == ""


async def test_without_room_for_its_sign_a_process_goes_on_following(state_dir: Path) -> None:
    """The temporary folder is full: told once, and shown when there is room again."""
    deploy(state_dir, "one")
    async with process_of(state_dir) as process:
        await process.has_looked_at(1)
        (sign,) = runtime_dir(state_dir).glob("runs-*")
        full = sign.with_name(f".{sign.name}")
        full.symlink_to("/dev/full")
        with capture_logs() as logs:
            for change, name in enumerate(("two", "three"), start=2):
                deploy(state_dir, name)
                await process.has_looked_at(change)
            assert process.names == ["two", "three"]
            assert [seen.number for seen in running(state_dir)] == [1]
            full.unlink()
            await process.until(lambda: [seen.number for seen in running(state_dir)] == [3])
        (told,) = (log for log in logs if log["event"] == "sign_not_written")
        assert "No space left on device" in told["reason"]
        assert str(sign) in told["reason"]


async def test_what_can_t_be_applied_is_shown_and_the_next_is_tried(state_dir: Path) -> None:
    deploy(state_dir, "one")
    async with process_of(state_dir) as process:
        process.broken = True
        deploy(state_dir, "two")
        await process.has_looked_at(2)
        shown = process.sign.shown
        assert (shown.number, shown.fault) == (1, "RuntimeError: a listener fell over")
        process.broken = False
        deploy(state_dir, "three")
        await process.has_looked_at(3)
        assert process.names == ["three"]


async def test_a_pointer_that_can_t_be_read_is_waited_out(state_dir: Path) -> None:
    deploy(state_dir, "one")
    async with process_of(state_dir) as process:
        await process.has_looked_at(1)
        pointer = state_dir / "deployments" / "current"
        good = pointer.read_text()
        with capture_logs() as logs:
            pointer.write_text("{")
            await asyncio.sleep(0.02)
        assert len([line for line in logs if line["event"] == "deployments_unreadable"]) <= 1
        pointer.write_text(good)
        deploy(state_dir, "two")
        await process.has_looked_at(2)
        assert process.names == ["two"]


async def test_who_started_with_an_older_one_says_so(state_dir: Path) -> None:
    deploy(state_dir, "good")
    deploy(state_dir, "bad", SECRET)
    async with process_of(state_dir) as process:
        await process.has_looked_at(2)
        assert process.sign.shown.number == 1
        assert "ONLY_THERE" in process.sign.shown.fault
