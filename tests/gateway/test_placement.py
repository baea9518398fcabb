"""Where requests go, and the line in which they wait: order, room, time, and who leaves."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from gateway.errors import ModelFailed, QueueFull, Unavailable
from gateway.relay.place import Place, Share
from gateway.relay.placement import Line, Placement
from gateway.relay.transport import Transport

MANY = 1000  # that may wait


def place(host_id: str, share: Share | None = None) -> Place:
    return Place(host_id, "http://host/v1", Transport("/nowhere.sock"), share)


def line(*host_ids: str, room: int = 1) -> Line:
    found = Placement().line("m")
    found.max_in_flight = room
    found.set_places([place(host_id) for host_id in host_ids])
    return found


def begin(work: Coroutine[Any, Any, Place]) -> asyncio.Task[Place]:
    return asyncio.ensure_future(work)


async def turns() -> None:
    """Let everything that can happen happen."""
    for _ in range(5):
        await asyncio.sleep(0)


def taken(found: Place | None) -> str:
    return found.host_id if found else "none"


def test_a_request_gets_the_place_with_the_fewest_tokens() -> None:
    given = line("a", "b", "c", room=10)
    assert [taken(given.take(given.turn(tokens))) for tokens in (50, 10, 20, 5, 6, 7)] == list(
        "abcbbc"
    )


def test_a_full_place_gets_no_more_until_one_has_ended() -> None:
    given = line("a", "b")
    first, second = given.take(given.turn(1)), given.take(given.turn(100))
    assert {taken(first), taken(second)} == {"a", "b"}
    assert given.take(given.turn(1)) is None
    assert second
    given.leave(second, 100)
    assert taken(given.take(given.turn(1))) == second.host_id


async def test_a_place_that_took_no_request_rests_until_it_is_tried_again() -> None:
    given = line("a", "b", room=10)
    lost = given.places[0]
    given.lose(lost)
    assert [taken(given.take(given.turn(1))) for _ in range(3)] == list("bbb")
    given.lose(given.places[1])
    waiting = begin(given.wait(given.turn(1), MANY, 60))
    await turns()
    assert not waiting.done()
    given.retry(lost)
    assert await waiting is lost


async def test_those_that_wait_come_in_the_order_in_which_they_came() -> None:
    given = line("a")
    held = given.take(given.turn(1))
    assert held
    order: list[int] = []

    async def one(number: int) -> None:
        found = given.take(given.turn(1)) or await given.wait(given.turn(1), MANY, 60)
        order.append(number)
        await asyncio.sleep(0)
        given.leave(found, 1)

    tasks = [asyncio.ensure_future(one(number)) for number in range(20)]
    await turns()
    assert (order, given.num_waiting) == ([], 20)
    given.leave(held, 1)
    await asyncio.gather(*tasks)
    assert order == list(range(20))
    assert given.places[0].in_flight == given.places[0].tokens == 0


async def test_nobody_overtakes_those_that_wait() -> None:
    """A request that comes in the very moment in which a place gets free waits its turn."""
    given = line("a")
    held = given.take(given.turn(1))
    assert held
    first = begin(given.wait(given.turn(1), MANY, 60))
    await turns()
    given.leave(held, 1)
    assert given.take(given.turn(1)) is None
    assert (await first).host_id == "a"


async def test_only_who_gets_a_place_is_woken() -> None:
    given = line("a")
    held = given.take(given.turn(1))
    assert held
    waiters = [begin(given.wait(given.turn(1), MANY, 60)) for _ in range(100)]
    await turns()
    given.leave(held, 1)
    await turns()
    assert sum(task.done() for task in waiters) == 1
    assert given.num_waiting == 99
    for task in waiters:
        task.cancel()
    await asyncio.gather(*waiters, return_exceptions=True)


async def test_new_places_are_filled_at_once() -> None:
    given = line(room=2)
    waiters = [begin(given.wait(given.turn(1), MANY, 60)) for _ in range(5)]
    await turns()
    given.set_places([place("a"), place("b")])
    await turns()
    assert [task.done() for task in waiters] == [True] * 4 + [False]
    waiters[4].cancel()
    await asyncio.gather(*waiters, return_exceptions=True)


async def test_who_leaves_while_it_waits_leaves_the_line_at_once() -> None:
    given = line()
    first, second = (
        begin(given.wait(given.turn(1), MANY, 60)),
        begin(given.wait(given.turn(1), MANY, 60)),
    )
    await turns()
    first.cancel()
    await asyncio.wait((first,))
    assert given.num_waiting == 1
    given.set_places([place("a")])
    assert (await second).host_id == "a"


async def test_who_leaves_in_the_moment_in_which_a_place_comes_gives_it_back() -> None:
    given = line()
    first, second = (
        begin(given.wait(given.turn(5), MANY, 60)),
        begin(given.wait(given.turn(1), MANY, 60)),
    )
    await turns()
    given.set_places([place("a")])  # given to the first, which hasn't run since
    first.cancel()
    assert (await second).host_id == "a"
    assert (given.places[0].in_flight, given.places[0].tokens) == (1, 1)


async def test_the_time_is_bounded() -> None:
    given = line()
    given.state = "starting"
    with pytest.raises(Unavailable, match=r"after 0.01 s \(it is starting\)"):
        await given.wait(given.turn(1), MANY, 0.01)
    given.set_places([place("a")])
    assert given.take(given.turn(1))
    with pytest.raises(Unavailable, match="its engine is full"):
        await given.wait(given.turn(1), MANY, 0.01)
    assert given.num_waiting == 0


async def test_so_is_their_number() -> None:
    given = line()
    waiters = [begin(given.wait(given.turn(1), 2, 60)) for _ in range(2)]
    await turns()
    with pytest.raises(QueueFull) as told:
        await given.wait(given.turn(1), 2, 60)
    assert (told.value.code, told.value.row.status) == ("queue_full", 503)
    assert told.value.row.retry_after_s
    given.set_places([place("a"), place("b")])
    await asyncio.gather(*waiters)


async def test_a_model_that_fails_refuses_those_that_wait_and_those_that_come() -> None:
    given = line()
    waiting = begin(given.wait(given.turn(1), MANY, 60))
    await turns()
    given.fail()
    for work in (waiting, given.wait(given.turn(1), MANY, 60)):
        with pytest.raises(ModelFailed) as told:
            await work
        assert told.value.code == "model_failed"
    assert given.num_waiting == 0
    given.has_failed = False
    given.set_places([place("a")])
    assert given.take(given.turn(1))


async def test_those_that_lose_their_place_stand_where_they_stood() -> None:
    """Each in turn is given the place that is gone, or all of them at once."""
    for room in (1, 8):
        given = line("gone", room=room)
        order: list[int] = []

        async def one(number: int, given: Line, order: list[int]) -> None:
            turn = given.turn(1)
            while (found := given.take(turn) or await given.wait(turn, MANY, 60)).host_id == "gone":
                await asyncio.sleep(0)
                given.lose(found)
                given.leave(found, 1)
            order.append(number)
            await asyncio.sleep(0)
            given.leave(found, 1)

        tasks = [asyncio.ensure_future(one(number, given, order)) for number in range(8)]
        for _ in range(8):
            await turns()
            given.retry(given.places[0])
        await turns()
        assert (order, given.num_waiting) == ([], 8)
        tasks.append(asyncio.ensure_future(one(8, given, order)))
        given.max_in_flight = 1
        given.set_places([place("new")])
        await asyncio.gather(*tasks)
        assert order == list(range(9))


async def test_one_that_had_its_place_may_wait_again_however_many_do() -> None:
    given = line("gone")
    turn = given.turn(1)
    found = given.take(turn)
    assert found
    behind = begin(given.wait(given.turn(1), 1, 60))
    await turns()
    given.lose(found)
    given.leave(found, 1)
    again = begin(given.wait(turn, 1, 60))
    await turns()
    assert given.num_waiting == 2
    with pytest.raises(QueueFull, match="2 requests wait"):
        await given.wait(given.turn(1), 1, 60)
    given.set_places([place("new")])
    given.leave(await again, 1)
    assert (await behind).host_id == "new"


async def test_one_that_lost_its_place_has_what_is_left_of_its_time() -> None:
    given = line()
    turn = given.turn(1)
    waiting = begin(given.wait(turn, MANY, 60))
    await turns()
    given.set_places([place("gone")])
    found, until = await waiting, turn.until
    given.lose(found)
    given.leave(found, 1)
    again = begin(given.wait(turn, MANY, 60))
    await turns()
    assert turn.until == until
    again.cancel()
    await asyncio.wait((again,))
    turn.until = 0  # of the loop's clock: it is over
    with pytest.raises(Unavailable, match="after 60 s"):
        await given.wait(turn, MANY, 60)


async def test_who_waits_in_vain_is_told_whether_there_was_no_room_or_no_way() -> None:
    given = line("a")
    given.lose(given.places[0])
    with pytest.raises(Unavailable, match="its engine can't be reached"):
        await given.wait(given.turn(1), MANY, 0)
    given.set_places([*given.places, place("b")])
    assert given.take(given.turn(1))
    with pytest.raises(Unavailable, match="of its 2 engines 1 can't be reached, and no other has"):
        await given.wait(given.turn(1), MANY, 0)
    given.retry(given.places[0])
    assert taken(given.take(given.turn(1))) == "a"
    with pytest.raises(Unavailable, match="1 can't be reached"):
        await given.wait(given.turn(1), MANY, 0)
    given.places[0].is_silent = False
    with pytest.raises(Unavailable, match="its 2 engines are full"):
        await given.wait(given.turn(1), MANY, 0)


async def test_room_that_a_deploy_makes_is_used_when_the_next_one_comes() -> None:
    given = line("a")
    assert given.take(given.turn(1))
    first = begin(given.wait(given.turn(1), MANY, 60))
    await turns()
    given.max_in_flight = 3
    second = begin(given.wait(given.turn(1), MANY, 60))
    assert [(await task).host_id for task in (first, second)] == ["a", "a"]


async def test_where_nobody_may_wait_a_refused_request_is_demand_all_the_same() -> None:
    """Else the first host would never start. It is told once, however many are refused."""
    waits: list[None] = []
    placement = Placement()
    placement.on_wait = lambda: waits.append(None)
    given = placement.line("m")
    given.state = "cold"
    for _ in range(3):
        with pytest.raises(QueueFull, match="nobody may wait for this model, and it is cold"):
            await given.wait(given.turn(1), 0, 60)
    assert len(waits) == 1
    assert [given.waiting_told().waiting for _ in range(2)] == [1, 0]
    given.set_places([place("a")])
    assert given.take(given.turn(1)) is not None
    with pytest.raises(QueueFull, match="its engine is full"):
        await given.wait(given.turn(1), 0, 60)
    assert len(waits) == 2
    waiting = begin(given.wait(given.turn(1), 1, 60))
    await turns()
    with pytest.raises(QueueFull, match="1 request waits"):
        await given.wait(given.turn(1), 1, 60)
    waiting.cancel()


async def test_what_waits_and_what_runs_is_told_with_the_most_since_the_last_time() -> None:
    """A request that came and went between two tellings was demand all the same."""
    share = Share()
    waits: list[None] = []
    placement = Placement()
    placement.on_wait = lambda: waits.append(None)
    given = placement.line("m")
    waiters = [begin(given.wait(given.turn(10), MANY, 60)) for _ in range(3)]
    await turns()
    assert len(waits) == 1, "it is told when somebody begins to wait where nobody did"
    told = given.waiting_told()
    assert (told.waiting, told.tokens) == (3, 30)
    given.max_in_flight = 2
    given.set_places([place("a", share)])
    await turns()
    assert given.waiting_told().waiting == 3, "as many as there were since"
    assert given.waiting_told().waiting == 1
    assert share.told() == (2, 20)
    for task in waiters[:2]:
        given.leave(task.result(), 10)
    given.leave(await waiters[2], 10)
    assert share.told()[0] == 2
    assert share.told() == (0, 0)


async def test_a_place_that_goes_is_no_demand_for_a_host_any_more() -> None:
    """What runs on a draining host ends there: nobody needs to start another one for it."""
    share = Share()
    given = line(room=5)
    given.set_places([place("a", share), place("b", share)])
    on_a, on_b = given.take(given.turn(10)), given.take(given.turn(10))
    assert on_a
    assert on_b
    given.set_places([on_b])
    assert share.told() == (1, 10)
    given.leave(on_a, 10)
    assert share.told() == (1, 10)
    given.leave(on_b, 10)
    share.told()
    assert share.told() == (0, 0)


@pytest.mark.parametrize("seed", range(5))
async def test_under_a_random_life_no_place_is_lost_and_none_holds_too_many(seed: int) -> None:
    """Clients that come, leave and wait, hosts that come and go."""
    rng = random.Random(seed)
    given = line(room=3)
    every: list[Place] = []
    served = left = 0

    async def client() -> None:
        nonlocal served, left
        tokens = rng.randrange(100)
        try:
            async with asyncio.timeout(rng.choice([0.001, 60, 60])):
                found = given.take(given.turn(tokens)) or await given.wait(
                    given.turn(tokens), MANY, 60
                )
                try:
                    assert found.in_flight <= 3
                    await asyncio.sleep(rng.random() / 500)
                    served += 1
                finally:
                    given.leave(found, tokens)
        except TimeoutError:
            left += 1

    clients = [asyncio.ensure_future(client()) for _ in range(300)]
    for number in range(40):
        found = [one for one in given.places if rng.random() < 0.7]
        every.append(place(f"h{number}"))
        given.set_places([*found, every[-1]])
        await asyncio.sleep(0.002)
    await asyncio.gather(*clients)
    assert served + left == 300
    assert served > 100
    assert given.num_waiting == 0
    assert all((one.in_flight, one.tokens) == (0, 0) for one in every)
    assert all((one.share.in_flight, one.share.tokens) == (0, 0) for one in every)
