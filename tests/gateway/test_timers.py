"""Timers of one length: each is called in its time, in order, and none that was stopped."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from functools import partial

import pytest

from gateway.timers import after


async def test_each_is_called_in_order_and_none_that_was_stopped() -> None:
    called: list[int] = []
    done = asyncio.Event()
    timers = [after(0.02, partial(called.append, n)) for n in range(5)]
    after(0.02, done.set)
    timers[0].stop()
    timers[3].stop()
    timers[3].stop()  # a second time is nothing
    await done.wait()
    assert called == [1, 2, 4]
    timers[1].stop()  # nor is one that was called


async def test_none_is_early() -> None:
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    began = loop.time()
    after(0.01, lambda: None).stop()
    await asyncio.sleep(0.005)
    began = loop.time()
    after(0.01, done.set)  # the loop looks when the first would have been due, and once more
    await done.wait()
    assert loop.time() >= began + 0.01


async def test_lengths_do_not_wait_for_each_other() -> None:
    done = asyncio.Event()
    after(60, lambda: None)
    after(0.01, done.set)
    await done.wait()


async def test_one_that_fails_holds_up_nobody() -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    done = asyncio.Event()

    def fails() -> None:
        raise ValueError("a fault of ours")

    after(0.01, fails)
    after(0.01, done.set)
    await done.wait()
    assert len(told) == 1


async def test_the_loop_is_told_of_the_first_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, told = asyncio.get_running_loop(), []
    plain = loop.call_at

    def counted(when: float, callback: Callable[..., object], *args: object) -> asyncio.TimerHandle:
        told.append(callback)
        return plain(when, callback, *args)

    monkeypatch.setattr(loop, "call_at", counted)
    for _ in range(1000):
        after(60.5, lambda: None).stop()
    assert len(told) == 1


async def test_one_that_is_stopped_or_was_called_keeps_nothing_alive() -> None:
    class Owner:
        def __init__(self, seconds: float) -> None:
            self.timer = after(seconds, self.end)
            self.has_ended = asyncio.Event()

        def end(self) -> None:
            self.has_ended.set()

    stopped, called = Owner(60), Owner(0.01)
    kept = [weakref.ref(stopped), weakref.ref(called)]
    gc.disable()  # nor does it need a collection to go
    try:
        stopped.timer.stop()
        await called.has_ended.wait()
        del stopped, called
        assert [ref() for ref in kept] == [None, None]
    finally:
        gc.enable()


def test_every_loop_has_its_own() -> None:
    async def called() -> bool:
        done = asyncio.Event()
        after(0.01, done.set)
        return await done.wait()

    assert asyncio.run(called())
    assert asyncio.run(called())
