"""Fair shares of a model: whose turn it is, who makes room, and what is owed."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, strategies as st

from gateway.errors import QueueFull
from gateway.relay.fairness import OUTPUT_COST, SCALE, Shares, cost_of
from gateway.relay.place import Place
from gateway.relay.placement import Line, Placement
from gateway.relay.transport import Transport


def line(room: int = 1) -> Line:
    found = Placement().line("m")
    found.max_in_flight = room
    found.set_places([Place("a", "http://host/v1", Transport("/nowhere.sock"))])
    return found


async def turns() -> None:
    """Let everything that can happen happen."""
    for _ in range(5):
        await asyncio.sleep(0)


@dataclass
class Tenant:
    """Asks again as soon as one of its requests has ended; `at_once` of them are always here."""

    name: str
    at_once: int
    sizes: tuple[int, int]  # output tokens of a request, from and to
    weight: int = 1
    served: int = 0
    waits: list[int] = field(default_factory=list)  # requests that ended before one's turn


class Model:
    """Serves one request at a time; a request that is served counts its tokens as it ends."""

    def __init__(self, room: int = 1) -> None:
        self.line = line(room)
        self.ended = 0
        self._chance = random.Random(1)
        self._over = False

    async def run(self, tenants: list[Tenant], requests: int) -> None:
        tasks = [
            asyncio.ensure_future(self._ask(one)) for one in tenants for _ in range(one.at_once)
        ]
        while self.ended < requests:
            await asyncio.sleep(0)
        self._over = True
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, tenant: Tenant) -> None:
        while not self._over:
            size, came = self._chance.randint(*tenant.sizes), self.ended
            turn = self.line.turn(size, tenant.name, tenant.weight)
            try:
                place = self.line.take(turn) or await self.line.wait(turn, 1000, 60)
                tenant.waits.append(self.ended - came)
                await asyncio.sleep(0)
                turn.count(0, size)
                tenant.served += size
                self.ended += 1
                self.line.leave(place, size)
            finally:
                self.line.end(turn)


async def test_who_sends_more_gets_no_more() -> None:
    """Tokens count, not requests: many, long ones or both."""
    tenants = [
        Tenant("few", 2, (90, 110)),
        Tenant("many", 40, (90, 110)),
        Tenant("long", 2, (900, 1100)),
        Tenant("many and long", 40, (900, 1100)),
    ]
    await Model().run(tenants, 4000)
    served = [tenant.served for tenant in tenants]
    jain = sum(served) ** 2 / (len(served) * sum(one * one for one in served))
    assert jain > 0.99
    assert max(served) - min(served) <= 4 * 1100


async def test_a_weight_of_three_gets_three_times_as_much() -> None:
    tenants = [Tenant("one", 5, (50, 150)), Tenant("three", 5, (50, 150), weight=3)]
    await Model().run(tenants, 4000)
    assert tenants[1].served / tenants[0].served == pytest.approx(3, rel=0.05)


async def test_a_flood_makes_a_light_tenant_wait_for_the_one_that_runs() -> None:
    """And for one more at most: the light one may owe for what it had just before."""
    light = Tenant("light", 1, (100, 100))
    await Model().run([Tenant("flood", 200, (100, 100)), light], 2000)
    assert len(light.waits) > 500
    assert max(light.waits) <= 2


async def test_a_tenant_alone_waits_for_nothing_but_a_place() -> None:
    alone = Tenant("alone", 4, (1, 1000))
    await Model(room=4).run([alone], 200)
    assert set(alone.waits) == {0}


def test_idling_earns_nothing() -> None:
    shares = Shares()
    shares.join("busy")
    shares.join("early")
    shares.leave("early")
    shares.charge("busy", 1000, 1)
    shares.join("early")
    assert shares.had("early") == shares.had("busy") == 1000 * SCALE


def test_a_debt_outlives_a_pause() -> None:
    """Else one would leave and come again to have it forgiven."""
    shares = Shares()
    for name in ("greedy", "other"):
        shares.join(name)
    shares.charge("greedy", 1000, 1)
    shares.leave("greedy")
    shares.join("greedy")
    assert shares.had("greedy") - shares.had("other") == 1000 * SCALE


def test_where_nobody_is_left_nothing_is_owed_or_kept() -> None:
    shares = Shares()
    for name in ("a", "b"):
        shares.join(name)
        shares.charge(name, 7, 1)
    shares.leave("a")
    shares.leave("b")
    shares.join("a")
    assert (shares.had("a"), shares.had("b")) == (0, 0)


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from(["join", "leave", "pay"])), max_size=200
    )
)
def test_nobody_who_comes_is_ahead_of_all_that_are_here(steps: list[tuple[str, str]]) -> None:
    shares, here = Shares(), dict.fromkeys("abcd", 0)
    for name, step in steps:
        present = [other for other, count in here.items() if count]
        if step == "join":
            shares.join(name)
            here[name] += 1
            if present:
                assert shares.had(name) >= min(shares.had(other) for other in present)
        elif step == "leave" and here[name]:
            shares.leave(name)
            here[name] -= 1
        elif step == "pay" and here[name]:
            shares.charge(name, 3, 2)


async def test_a_long_answer_pays_while_it_runs_and_what_was_paid_ahead_is_settled() -> None:
    given = line(room=2)
    long, short = (given.turn(1, name, ahead=cost_of(0, 500)) for name in ("long", "short"))
    assert given.take(long)
    assert given.take(short)
    long.count(0, 900)
    short.count(0, 10)
    waiting = []
    for name in ("long", "short"):
        turn = given.turn(1, name)
        waiting.append(asyncio.ensure_future(given.wait(turn, 10, 60)))
        await turns()
    given.leave(given.places[0], 1)
    await turns()
    assert [task.done() for task in waiting] == [False, True]
    assert given._shares.had("long") == 900 * OUTPUT_COST * SCALE
    waiting[0].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_full_queue_makes_room_for_who_has_less_in_it() -> None:
    """The last of the longest leaves; the newcomer's own never do; a share alike is refused."""
    given = line()
    assert given.take(given.turn(1, "flood"))
    flood = [asyncio.ensure_future(given.wait(given.turn(1, "flood"), 4, 60)) for _ in range(4)]
    await turns()
    with pytest.raises(QueueFull):
        await given.wait(given.turn(1, "flood"), 4, 60)
    light = [asyncio.ensure_future(given.wait(given.turn(1, "light"), 4, 60)) for _ in range(2)]
    await turns()
    assert [task.done() for task in flood] == [False, False, True, True]
    for gone in flood[2:]:
        with pytest.raises(QueueFull, match="4 requests wait"):
            await gone
    with pytest.raises(QueueFull):
        await given.wait(given.turn(1, "light"), 4, 60)
    assert given.num_waiting == 4
    for task in flood + light:
        task.cancel()
    await asyncio.gather(*flood, *light, return_exceptions=True)
    assert given.num_waiting == 0
    assert given.waiting_told().tokens == 0


async def test_a_request_that_lost_its_place_keeps_its_turn_and_pays_once() -> None:
    given = line()
    turn = given.turn(1, "a", ahead=50)
    place = given.take(turn)
    assert place
    given.lose(place)
    given.leave(place, 1)
    flood = [asyncio.ensure_future(given.wait(given.turn(1, "a"), 10, 60)) for _ in range(3)]
    await turns()
    again = asyncio.ensure_future(given.wait(turn, 1, 60))
    await turns()
    given.retry(place)
    assert await again is place
    assert given._shares.had("a") == 50 * SCALE
    for task in flood:
        task.cancel()
    await asyncio.gather(*flood, return_exceptions=True)
