"""A silence that is too long is the engine's; a cancellation from outside stays one."""

from __future__ import annotations

import asyncio

import pytest

from gateway.errors import IntegrityAbort, UpstreamTimeout
from gateway.relay.deadline import Deadline, Silence
from gateway.relay.trust import Flight, Trust


async def test_what_ends_in_time_is_let_be() -> None:
    async with Deadline(60):
        await asyncio.sleep(0)


async def test_what_takes_too_long_is_a_timeout_of_the_upstream_s() -> None:
    with pytest.raises(UpstreamTimeout, match=r"silent for 0\.01 s"):
        async with Deadline(0.01):
            await asyncio.sleep(60)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_one_within_another_ends_alone() -> None:
    async with Deadline(60):
        with pytest.raises(UpstreamTimeout):
            async with Deadline(0):
                await asyncio.sleep(60)
        await asyncio.sleep(0)


async def test_who_is_cancelled_from_outside_in_the_same_moment_is_cancelled() -> None:
    deadline = Deadline(60)

    async def runs() -> None:
        async with deadline:
            await asyncio.sleep(60)

    call = asyncio.ensure_future(runs())
    await asyncio.sleep(0)
    call.cancel()
    deadline._end()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_one_timer_looks_after_many_waits() -> None:
    silence = Silence(60)
    timers = set()
    for _ in range(20):
        with silence:
            await asyncio.sleep(0)
            timers.add(silence._timer)
    assert len(timers) == 1
    silence._look()  # as when it fires between two waits: nobody waits for the engine then
    with silence:
        silence._look()  # this wait has only begun
        assert silence._timer is not None
        await asyncio.sleep(0)
    silence.close()


async def test_a_wait_that_takes_too_long_is_a_timeout_of_the_upstream_s() -> None:
    silence = Silence(0.01)
    with pytest.raises(UpstreamTimeout, match=r"silent for 0\.01 s"), silence:
        await asyncio.sleep(60)
    silence.close()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_who_is_cancelled_from_outside_in_a_silence_is_cancelled() -> None:
    silences: list[Silence] = []

    async def runs() -> None:
        silences.append(Silence(0.0))
        with silences[0]:
            await asyncio.sleep(60)

    call = asyncio.ensure_future(runs())
    await asyncio.sleep(0)
    call.cancel()
    silences[0]._look()
    with pytest.raises(asyncio.CancelledError):
        await call


def flight() -> Flight:
    return Trust(0.0).board("salt")


async def test_a_request_that_is_stopped_ends_in_its_wait_as_what_it_is() -> None:
    stopped = flight()
    asyncio.get_running_loop().call_soon(stopped.stop)
    with pytest.raises(IntegrityAbort):
        async with Deadline(60, stopped):
            await asyncio.sleep(60)
    stopped = flight()
    silence = Silence(60, stopped)
    with silence:
        await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(stopped.stop)
    with pytest.raises(IntegrityAbort), silence:
        await asyncio.sleep(60)
    silence.close()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_one_that_is_stopped_between_two_waits_ends_at_the_next() -> None:
    stopped = flight()
    silence = Silence(60, stopped)
    with silence:
        await asyncio.sleep(0)
    stopped.stop()
    await asyncio.sleep(0)  # nothing is cancelled that isn't a wait for the engine
    with pytest.raises(IntegrityAbort), silence:
        pass
    with pytest.raises(IntegrityAbort):
        async with Deadline(60, stopped):
            pass
    silence.close()


async def test_a_client_that_left_as_it_was_stopped_has_left() -> None:
    stopped = flight()

    async def runs() -> None:
        async with Deadline(60, stopped):
            await asyncio.sleep(60)

    call = asyncio.ensure_future(runs())
    await asyncio.sleep(0)
    call.cancel()
    stopped.stop()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert stopped.wait is None
