"""What ends a request from outside: it ends in its reason, and nothing of it surfaces later."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message

from gateway.errors import Stopping
from gateway.stopper import ClientGone, Stopper, Watched


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


async def test_a_client_that_leaves_ends_what_is_watched_and_no_task_listens_where_none_must() -> (
    None
):
    heard: list[asyncio.Future[Message]] = []

    def receive() -> asyncio.Future[Message]:
        heard.append(asyncio.get_running_loop().create_future())
        return heard[-1]

    async def watched() -> None:
        tasks = asyncio.all_tasks()
        async with Watched(receive, Stopper()):
            assert asyncio.all_tasks() == tasks
            heard[0].set_result({"type": "http.request"})
            await asyncio.sleep(0)
            heard[1].set_result({"type": "http.disconnect"})
            await asyncio.sleep(60)

    with pytest.raises(ClientGone):
        await asyncio.ensure_future(watched())


async def test_what_is_watched_to_its_end_is_listened_to_no_more() -> None:
    listening: list[asyncio.Future[Message]] = []

    def receive() -> asyncio.Future[Message]:
        listening.append(asyncio.get_running_loop().create_future())
        return listening[-1]

    async with Watched(receive, Stopper()):
        pass
    await asyncio.sleep(0)
    assert [one.cancelled() for one in listening] == [True]
