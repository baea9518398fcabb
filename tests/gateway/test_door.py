"""The door to the ledger: requests wait while it is shut, and none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway import door as module
from gateway.door import Door, keep, take
from gateway.store.errors import StoreUnavailable
from gateway.store.hold import Use, held, is_wanted


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def test_an_open_door_lets_in_at_once() -> None:
    door = Door(0)
    await door.enter("a")
    await door.enter("b")
    door.leave("a")
    door.leave("a")
    emptied = asyncio.ensure_future(door.emptied())
    await asyncio.sleep(0)
    assert not emptied.done()
    door.leave("b")
    await emptied


async def test_who_waits_is_let_in_when_it_opens() -> None:
    door = Door(30)
    door.shut()
    waiting = [asyncio.ensure_future(door.enter(name)) for name in "abc"]
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in waiting)
    door.open()
    await asyncio.gather(*waiting)


async def test_who_waits_is_not_let_in_by_a_door_that_is_shut_again_at_once() -> None:
    door = Door(30)
    door.shut()
    waiting = asyncio.ensure_future(door.enter("a"))
    await asyncio.sleep(0.05)
    door.open()
    door.shut()
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await door.emptied()
    door.open()
    await waiting


async def test_waiting_is_bounded() -> None:
    door = Door(0.05)
    door.shut()
    with pytest.raises(StoreUnavailable, match="being restored"):
        await door.enter("a")
    await door.emptied()


async def test_who_comes_after_a_change_of_patience_waits_no_longer_than_that() -> None:
    door = Door(30)
    door.shut()
    before = asyncio.ensure_future(door.enter("a"))
    await asyncio.sleep(0)
    door.patience_s = 0.01
    with pytest.raises(StoreUnavailable):
        await door.enter("b")
    assert not before.done()
    door.open()
    await before


class Gateway:
    """A gateway's share in the store, and what it was asked to do, in order."""

    def __init__(self, database: Path) -> None:
        self.database = database
        self.door = Door(30)
        self.use = Use(database)
        self.done: list[str] = []
        self.fault: Exception | None = None

    async def flush(self) -> None:
        self.done.append("flush")
        if self.fault:
            raise self.fault

    async def look_again(self) -> None:
        self.done.append("look")
        if self.fault:
            raise self.fault

    async def restore(self, change: Callable[[], object] = lambda: None) -> None:
        """What another process does."""

        def restore() -> None:
            with held(self.database, 30):
                change()

        await asyncio.to_thread(restore)


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    gateway = Gateway(tmp_path / "store.db")
    await take(gateway.use)
    task = asyncio.create_task(
        keep(gateway.door, gateway.use, gateway.database, gateway.flush, gateway.look_again)
    )
    yield gateway
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    gateway.use.let_go()


async def test_a_restore_waits_for_who_is_inside_and_who_comes_waits_for_it(
    gateway: Gateway,
) -> None:
    await gateway.door.enter("a")
    restoring = asyncio.ensure_future(gateway.restore(lambda: gateway.done.append("replace")))
    await asyncio.sleep(0.5)
    coming = asyncio.ensure_future(gateway.door.enter("b"))
    coming.add_done_callback(lambda _: gateway.done.append("in"))
    await asyncio.sleep(0.1)
    assert not restoring.done()
    assert not coming.done()
    gateway.door.leave("a")
    await restoring
    await coming
    assert gateway.done == ["flush", "replace", "look", "in"]


async def test_one_restore_after_another(gateway: Gateway) -> None:
    for _ in range(3):
        await gateway.restore()
        await until(lambda: gateway.done[-1] == "look")
    async with asyncio.timeout(30):
        await gateway.door.enter("a")


async def test_a_restore_that_gives_up_lets_requests_in(gateway: Gateway) -> None:
    await gateway.door.enter("a")

    def give_up() -> None:
        with pytest.raises(Exception, match="still written to"), held(gateway.database, 0.5):
            raise AssertionError("somebody is inside")

    giving_up = asyncio.ensure_future(asyncio.to_thread(give_up))
    await asyncio.sleep(0.3)
    async with asyncio.timeout(30):
        await gateway.door.enter("a")
        await giving_up
    assert "flush" not in gateway.done


async def test_a_store_that_fails_does_not_end_the_keeping(gateway: Gateway) -> None:
    gateway.fault = StoreUnavailable("broken")
    await gateway.restore()
    await until(lambda: gateway.done == ["flush", "look"])
    await gateway.restore()
    async with asyncio.timeout(30):
        await gateway.door.enter("a")


async def test_nobody_is_let_in_before_the_store_is_ours_again(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault just after it was let go of."""
    left = [2]

    def fail(database: Path) -> bool:
        if not gateway.use.is_held and left[0]:
            left[0] -= 1
            raise OSError("too many open files")
        return is_wanted(database)

    monkeypatch.setattr(module, "is_wanted", fail)
    seen: list[bool] = []
    really_open = gateway.door.open

    def note() -> None:
        seen.append(gateway.use.is_held)
        really_open()

    monkeypatch.setattr(gateway.door, "open", note)
    await gateway.restore()
    await until(lambda: left == [1] and gateway.use.is_held)
    assert all(seen)
    async with asyncio.timeout(30):
        await gateway.door.enter("a")


async def test_marks_that_cannot_be_read_do_not_end_the_keeping(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    def fail(database: Path) -> bool:
        looks.append(1)
        raise OSError("too many open files")

    with monkeypatch.context() as broken, capture_logs() as log:
        broken.setattr(module, "is_wanted", fail)
        await until(lambda: len(looks) > 2)
    assert [entry["event"] for entry in log] == ["store_marks_unreadable"]
    await gateway.restore()
    await until(lambda: gateway.done == ["flush", "look"])
