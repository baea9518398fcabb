"""What ends a request from outside: it ends in its reason, and nothing of it surfaces later."""

from __future__ import annotations

import asyncio

import pytest

from gateway.errors import Stopping
from gateway.stopper import ClientGone, Stopper


async def test_what_runs_inside_ends_in_the_first_reason() -> None:
    stopper = Stopper()

    async def runs() -> None:
        async with stopper:
            stopper.stop(ClientGone())
            stopper.stop(Stopping("later"))
            await asyncio.sleep(60)

    with pytest.raises(ClientGone):
        await runs()
    await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_what_would_run_next_does_not_begin() -> None:
    stopper = Stopper()
    async with stopper:
        pass
    stopper.stop(ClientGone())
    with pytest.raises(ClientGone):
        async with stopper:
            raise AssertionError("it began")


async def test_stopped_at_its_very_end_it_is_stopped_all_the_same() -> None:
    stopper = Stopper()

    async def runs() -> None:
        async with stopper:
            stopper.stop(ClientGone())

    with pytest.raises(ClientGone):
        await runs()
    await asyncio.sleep(0)


async def test_a_fault_of_its_own_and_a_cancellation_by_others_stay_what_they_are() -> None:
    async def fails() -> None:
        async with Stopper(), asyncio.timeout(0):
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        await fails()

    async def runs() -> None:
        async with Stopper():
            await asyncio.sleep(60)

    call = asyncio.ensure_future(runs())
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
