"""Who lives is seen, and not told by a clock: leases of gateways that share a database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.boots import Boots
from gateway.door import Door
from gateway.leases import ASSURED_S, LEASE_S, Leases, Seen
from gateway.ledger import Ledger
from gateway.store.address import Database
from gateway.store.errors import StoreUnavailable
from gateway.store.reader import read
from gateway.store.writer import Writer
from tests.gateway.records import COMPLETED, OPENING, FakeClock, fill, row


def test_a_lease_is_dead_that_was_seen_unchanged_for_so_long() -> None:
    seen = Seen()
    for second in range(0, int(LEASE_S) + 2, 2):
        seen.look({"still": 5, "moves": second}, float(second))
    assert seen.unchanged("still", 5)
    assert not seen.unchanged("still", 6), "it has moved since"
    assert not seen.unchanged("moves", second)
    assert not seen.unchanged("unknown", 1)


def test_who_could_not_look_begins_anew() -> None:
    """The server was away: the others could not renew theirs either."""
    seen = Seen()
    seen.look({"other": 5}, 0.0)
    seen.look({"other": 5}, 1000.0)
    assert not seen.unchanged("other", 5)
    for second in range(2, int(LEASE_S) + 3, 2):
        assert not seen.unchanged("other", 5)
        seen.look({"other": 5}, 1000.0 + second)
    assert seen.unchanged("other", 5)


class Time:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


class Replica:
    """A gateway's ledger and lease; `time` goes on as the test says."""

    def __init__(self, database: Database, folder: Path, name: str, time: Time) -> None:
        self.database = database
        self.clock = FakeClock()
        self.writer = Writer(database)
        self.boots = Boots(folder / name)
        self.leases = Leases(self.writer, self.boots, name, "host", self.clock, time)
        self.ledger = Ledger(self.writer, self.clock, name, Door(0), lambda: self.leases.is_assured)

    async def look(self) -> None:
        self.clock.us += 1
        await self.leases.renew()

    async def reap(self) -> int:
        return await self.ledger.reap_orphans(self.leases.is_alive, self.leases.end_the_dead)


@pytest.fixture
async def pair(database: Database, tmp_path: Path) -> AsyncIterator[tuple[Replica, Replica, Time]]:
    fill(database)
    time = Time()
    async with (
        _running(database, tmp_path, "boot_1", time) as one,
        _running(database, tmp_path, "boot_2", time) as other,
    ):
        yield one, other, time


@asynccontextmanager
async def _running(
    database: Database, folder: Path, name: str, time: Time
) -> AsyncIterator[Replica]:
    replica = Replica(database, folder, name, time)
    replica.writer.start()
    await replica.look()
    yield replica
    await asyncio.to_thread(replica.writer.close)


async def _until_given_up(replica: Replica, time: Time) -> None:
    for _ in range(int(LEASE_S / 2) + 1):
        time.s += 2
        await replica.look()


async def test_who_renews_is_spared_and_who_doesn_t_is_given_up(
    pair: tuple[Replica, Replica, Time],
) -> None:
    one, other, time = pair
    mine = await one.ledger.open(OPENING)
    theirs = await other.ledger.open(replace(OPENING, request_id="req_2"))
    for _ in range(20):
        time.s += 2
        await other.look()
        await one.look()
    assert await one.reap() == 0
    await _until_given_up(one, time)
    assert await one.reap() == 1
    assert row(one.database, theirs.id)["state"] == "orphaned"
    assert row(one.database, mine.id)["state"] == "open"
    assert not await other.ledger.settle(theirs, COMPLETED), "it is told, and sends no end"


async def test_one_that_was_given_up_opens_nothing_before_it_has_its_lease_again(
    pair: tuple[Replica, Replica, Time],
) -> None:
    one, other, time = pair
    await _until_given_up(one, time)
    await one.reap()
    assert time.s - 100 > ASSURED_S
    with pytest.raises(StoreUnavailable, match="lease"):
        await other.ledger.open(OPENING)
    await other.look()
    record = await other.ledger.open(OPENING)
    assert await one.reap() == 0
    assert await other.ledger.settle(record, COMPLETED)


async def test_who_leaves_has_no_lease(pair: tuple[Replica, Replica, Time]) -> None:
    one, other, _ = pair
    left = await other.ledger.open(OPENING)
    await other.leases.leave()
    await one.look()
    assert await one.reap() == 1
    assert row(one.database, left.id)["state"] == "orphaned"


async def test_one_that_was_killed_on_the_same_machine_is_known_at_once(
    pair: tuple[Replica, Replica, Time], tmp_path: Path
) -> None:
    one, other, _ = pair
    left = await other.ledger.open(OPENING)
    with one.boots.living("boot_2"):
        assert await one.reap() == 0
    assert one.boots.has_died("boot_2")
    assert await one.reap() == 1
    assert row(one.database, left.id)["state"] == "orphaned"
    boots = "SELECT boot_id FROM gateway_boot"
    assert read(one.database, lambda db: db.execute(boots).fetchall()) == [("boot_1",)]
