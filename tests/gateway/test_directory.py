"""Who may call: the keys in memory follow the database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from gateway.clock import SystemClock
from gateway.identity import keys
from gateway.identity.api_keys import Key, create_key, revoke_key
from gateway.identity.tenants import create_tenant, list_tenants
from gateway.ledger import Ledger
from gateway.prices import Terms, TokenPrices
from gateway.record import Opening
from gateway.store.address import Database
from gateway.store.connection import open_for_writing
from gateway.store.directory import KeyDirectory
from gateway.store.errors import StoreUnavailable
from gateway.store.principal import Principal
from gateway.store.writer import Writer

PEPPER = b"pepper"


class FakeClock:
    def __init__(self) -> None:
        self.us = 1_000_000

    def now_us(self) -> int:
        return self.us


@pytest.fixture
def path(database: Database) -> Database:
    return database


def add_key(path: Database, tenant: str, is_demo: bool = False) -> tuple[Key, bytes]:
    with closing(open_for_writing(path)) as db:
        if tenant not in {known.name for known in list_tenants(db)}:
            create_tenant(db, tenant, is_demo=is_demo)
        key, secret = create_key(db, tenant, "laptop", PEPPER)
    return key, keys.digest(PEPPER, secret)


def revoke(path: Database, key: Key) -> None:
    with closing(open_for_writing(path)) as db:
        revoke_key(db, key.id)


async def test_a_live_key_is_its_principal(path: Database) -> None:
    key, digest = add_key(path, "acme")
    directory = KeyDirectory(path, FakeClock())
    assert directory.principal(digest) is None
    assert await directory.refresh_if_changed()
    assert directory.principal(digest) == Principal(key.tenant_id, "acme", key.id)
    assert directory.principal(digest[:-1]) is None


async def test_the_keys_are_read_again_only_after_a_change(path: Database) -> None:
    key, digest = add_key(path, "acme")
    directory = KeyDirectory(path, FakeClock())
    assert [await directory.refresh_if_changed() for _ in range(2)] == [True, False]
    revoke(path, key)
    assert await directory.refresh_if_changed()
    assert directory.principal(digest) is None


async def test_demo_keys_are_for_dev_alone(path: Database) -> None:
    _, digest = add_key(path, "demo", is_demo=True)
    served, dev = (
        KeyDirectory(path, FakeClock()),
        KeyDirectory(path, FakeClock(), include_demo=True),
    )
    await served.refresh_if_changed()
    await dev.refresh_if_changed()
    assert served.principal(digest) is None
    assert dev.principal(digest) is not None


async def test_a_directory_is_blind_before_its_first_look_and_5_s_after_its_last(
    path: Database,
) -> None:
    clock = FakeClock()
    directory = KeyDirectory(path, clock)
    assert directory.is_blind(clock.us)
    await directory.refresh_if_changed()
    assert not directory.is_blind(clock.us + 5_000_000)
    assert directory.is_blind(clock.us + 5_000_001)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_looks_that_fail_end_in_blindness_and_a_good_one_ends_it(path: Path) -> None:
    clock = FakeClock()
    _, digest = add_key(path, "acme")
    directory = KeyDirectory(path, clock)
    stop = asyncio.Event()
    watching = asyncio.ensure_future(directory.watch(stop, interval_s=0.005))
    await until(lambda: directory.principal(digest) is not None)

    path.rename(path.with_suffix(".gone"))
    with pytest.raises(StoreUnavailable):
        await directory.refresh_if_changed()
    clock.us += 5_000_001
    assert directory.is_blind(clock.us)

    path.with_suffix(".gone").rename(path)
    await until(lambda: not directory.is_blind(clock.us))
    stop.set()
    await watching


async def test_one_look_is_enough_while_the_writer_commits_without_a_pause(path: Database) -> None:
    key, _ = add_key(path, "acme")
    directory = KeyDirectory(path, SystemClock())
    async with writing(path, key):
        new, digest = await asyncio.to_thread(add_key, path, "acme")
        await directory.refresh_if_changed()
        assert directory.principal(digest) is not None
        await asyncio.to_thread(revoke, path, new)
        await directory.refresh_if_changed()
        assert directory.principal(digest) is None
        assert not directory.is_blind(SystemClock().now_us())


class Hurried:
    """Ends every wait at once, and the third is the last; notes how long each might have been."""

    def __init__(self) -> None:
        self.waits_s: list[float] = []

    def is_set(self) -> bool:
        return len(self.waits_s) == 3

    async def wait(self) -> None:
        self.waits_s.append(anyio.current_effective_deadline() - anyio.current_time())


async def test_it_looks_often_enough_for_a_revocation_to_count_within_a_second(
    path: Database,
) -> None:
    stop = Hurried()
    await KeyDirectory(path, FakeClock()).watch(stop)
    assert all(0 < wait_s <= 0.25 for wait_s in stop.waits_s), "which leaves a look 0.75 s"


@asynccontextmanager
async def writing(path: Database, key: Key) -> AsyncIterator[None]:
    """Keep the writer busy with openings."""
    terms = Terms.of(TokenPrices("USD", 1, 1, 1))
    opening = Opening("", key.tenant_id, key.id, "chat", "m", "rev", terms, streamed=False)
    writer = Writer(path)
    writer.start()
    ledger = Ledger(writer, SystemClock(), "boot_1")

    async def work(worker: int) -> None:
        for number in range(1_000_000):
            await ledger.open(replace(opening, request_id=f"{worker}-{number}"))

    working = [asyncio.ensure_future(work(worker)) for worker in range(16)]
    yield
    for task in working:
        task.cancel()
    await asyncio.gather(*working, return_exceptions=True)
    writer.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)
