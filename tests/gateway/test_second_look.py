"""A key that was just made works at once, and made-up keys don't load the store."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from pathlib import Path

import pytest

from gateway.errors import StoreDown, Unauthorized
from gateway.identity import keys
from gateway.identity.api_keys import create_key, revoke_key
from gateway.identity.auth import Authenticator, IdentityKeys
from gateway.identity.issuers import Issuers
from gateway.identity.tenants import create_tenant
from gateway.store import second_look as module
from gateway.store.connection import open_for_writing
from gateway.store.directory import KeyDirectory
from gateway.store.errors import StoreUnavailable
from gateway.store.migrate import migrate
from gateway.store.principal import Principal
from gateway.store.second_look import BURST, REMEMBERED, Ration, SecondLook
from gateway.store.sql import Connection

PEPPER = b"pepper"


class FakeClock:
    def __init__(self) -> None:
        self.us = 1_000_000

    def now_us(self) -> int:
        return self.us


class Counted(KeyDirectory):
    """Counts its reads, and can be held up in one."""

    def __init__(self, path: Path, clock: FakeClock) -> None:
        super().__init__(path, clock)
        self.reads = 0
        self.reading = threading.Event()
        self.may_read = threading.Event()
        self.may_read.set()

    def _read_if_changed(self, db: Connection) -> object:  # type: ignore[override]
        found = super()._read_if_changed(db)
        self.reads += 1
        self.reading.set()
        assert self.may_read.wait(30)
        return found


class Gateway:
    """A directory that has looked once, and an authenticator over it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "store.db"
        migrate(self.path)
        with closing(open_for_writing(self.path)) as db:
            create_tenant(db, "acme")
        self.clock = FakeClock()
        self.directory = Counted(self.path, self.clock)
        own = IdentityKeys(pepper=PEPPER, domain=b"domain key", tokens=b"tokens")
        self.auth = Authenticator(self.directory, self.clock, own, Issuers(self.clock))

    def new_key(self) -> str:
        with closing(open_for_writing(self.path)) as db:
            return create_key(db, "acme", "laptop", PEPPER)[1]

    async def ask(self, secret: str) -> Principal:
        return await self.auth.principal(f"Bearer {secret}")

    async def are_refused(self, count: int) -> None:
        """So many made-up keys at once, until a regular look has been for those that need one."""
        asking = asyncio.gather(*(self.is_refused(keys.mint()) for _ in range(count)))
        while not asking.done():
            await asyncio.wait((asking,), timeout=0.05)
            if self.directory._next is not None:
                await self.directory.refresh_if_changed()
        assert all(await asking)

    async def is_refused(self, secret: str) -> bool:
        with pytest.raises(Unauthorized):
            await self.ask(secret)
        return True


@pytest.fixture
async def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gateway:
    monkeypatch.setattr(module, "PATIENCE_S", 30)  # of a busy machine
    gateway = Gateway(tmp_path)
    await gateway.directory.refresh_if_changed()
    gateway.directory.reads = 0
    return gateway


async def test_a_key_works_as_soon_as_it_is_made(gateway: Gateway) -> None:
    secret = gateway.new_key()
    assert (await gateway.ask(secret)).tenant_name == "acme"
    assert gateway.directory.reads == 1
    await gateway.ask(secret)
    assert gateway.directory.reads == 1


async def test_who_ask_at_once_share_a_look(gateway: Gateway) -> None:
    made = [gateway.new_key() for _ in range(50)]
    found = await asyncio.gather(*(gateway.ask(secret) for secret in made))
    assert len({principal.key_id for principal in found}) == 50
    assert gateway.directory.reads <= 2


async def test_a_key_that_is_made_while_a_look_goes_on_has_another(gateway: Gateway) -> None:
    directory = gateway.directory
    directory.may_read.clear()
    directory.reading.clear()
    first = asyncio.ensure_future(gateway.is_refused(keys.mint()))
    assert await asyncio.to_thread(directory.reading.wait, 30)
    asking = asyncio.ensure_future(gateway.ask(gateway.new_key()))
    await asyncio.sleep(0)
    directory.may_read.set()
    assert (await asking).tenant_name == "acme"
    assert await first


async def test_a_key_that_was_not_there_is_not_looked_for_again(gateway: Gateway) -> None:
    nobody = keys.mint()
    for _ in range(5):
        assert await gateway.is_refused(nobody)
    assert gateway.directory.reads == 1


async def test_made_up_keys_have_few_looks(gateway: Gateway) -> None:
    for _ in range(int(BURST)):
        assert await gateway.is_refused(keys.mint())
    assert gateway.directory.reads == BURST
    await gateway.are_refused(1000)
    assert gateway.directory.reads == BURST + 1, "they share the next regular one"
    gateway.clock.us += 1_000_000
    for _ in range(int(module.PER_S)):
        assert await gateway.is_refused(keys.mint())
    await gateway.are_refused(1000)
    assert gateway.directory.reads == BURST + 1 + module.PER_S + 1


async def test_a_key_without_a_look_waits_for_the_next_regular_one(gateway: Gateway) -> None:
    """For one that begins after it came: one that runs may have read before the key was made."""
    for _ in range(int(BURST)):
        assert await gateway.is_refused(keys.mint())
    directory = gateway.directory
    directory.may_read.clear()
    directory.reading.clear()
    older = asyncio.ensure_future(directory.refresh_if_changed())
    assert await asyncio.to_thread(directory.reading.wait, 30)
    asking = asyncio.ensure_future(gateway.ask(gateway.new_key()))
    await asyncio.sleep(0)
    directory.may_read.set()
    await older
    assert not asking.done()
    await directory.refresh_if_changed()
    assert (await asking).tenant_name == "acme"


async def test_a_regular_look_that_fails_is_no_reason_to_call_a_key_bad(gateway: Gateway) -> None:
    for _ in range(int(BURST)):
        assert await gateway.is_refused(keys.mint())
    asking = asyncio.ensure_future(gateway.ask(gateway.new_key()))
    await asyncio.sleep(0)
    gateway.path.rename(gateway.path.with_suffix(".gone"))
    with pytest.raises(StoreUnavailable):
        await gateway.directory.refresh_if_changed()
    with pytest.raises(StoreDown):
        await asking


async def test_what_is_remembered_of_strangers_is_bounded(gateway: Gateway) -> None:
    look = SecondLook(gateway.directory, gateway.clock)
    for number in range(REMEMBERED + 100):
        gateway.clock.us += 1_000_000
        assert await look.principal(number.to_bytes(32, "big")) is None
    assert len(look._missing) == REMEMBERED


async def test_a_store_that_cannot_be_read_is_no_reason_to_call_a_key_bad(
    gateway: Gateway,
) -> None:
    secret = gateway.new_key()
    gateway.path.rename(gateway.path.with_suffix(".gone"))
    with pytest.raises(StoreDown):
        await gateway.ask(secret)
    gateway.path.with_suffix(".gone").rename(gateway.path)
    assert (await gateway.ask(secret)).tenant_name == "acme"


async def test_a_look_that_takes_too_long_is_not_waited_for(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.01)
    look = SecondLook(gateway.directory, gateway.clock)
    gateway.directory.may_read.clear()
    with pytest.raises(StoreUnavailable):
        await look.principal(b"x" * 32)
    gateway.directory.may_read.set()


async def test_a_caller_that_leaves_takes_the_look_from_nobody(gateway: Gateway) -> None:
    gateway.directory.may_read.clear()
    secret = gateway.new_key()
    leaving, staying = (asyncio.ensure_future(gateway.ask(secret)) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.sleep(0)
    gateway.directory.may_read.set()
    assert (await staying).tenant_name == "acme"


async def test_an_older_look_does_not_bring_back_a_revoked_key(gateway: Gateway) -> None:
    """The regular look has read when the key is revoked, and is told late."""
    directory = gateway.directory
    with closing(open_for_writing(gateway.path)) as db:
        key, secret = create_key(db, "acme", "laptop", PEPPER)
    directory.may_read.clear()
    directory.reading.clear()
    older = asyncio.ensure_future(directory.refresh_if_changed())
    assert await asyncio.to_thread(directory.reading.wait, 30)
    with closing(open_for_writing(gateway.path)) as db:
        revoke_key(db, key.id)
    newer = asyncio.ensure_future(directory.refresh_if_changed())
    await asyncio.sleep(0.05)
    directory.may_read.set()
    await asyncio.gather(older, newer)
    assert await gateway.is_refused(secret)


def test_a_ration_is_a_burst_and_then_so_many_a_second() -> None:
    clock = FakeClock()
    ration = Ration(clock, burst=3, per_s=2)
    assert [ration.take() for _ in range(4)] == [True, True, True, False]
    clock.us += 500_000
    assert [ration.take() for _ in range(2)] == [True, False]
    clock.us -= 10_000_000
    assert not ration.take()
    clock.us += 1_000_000_000
    assert [ration.take() for _ in range(4)] == [True, True, True, False]
