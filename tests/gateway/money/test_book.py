"""Prices in the store and in memory: versions made once, whoever makes them, in force at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from gateway.catalog.catalog import Deployment, catalog_of
from gateway.door import Door
from gateway.errors import StoreDown
from gateway.money.book import PriceBook
from gateway.money.refused import refuse_past_prices
from gateway.money.wanted import wanted_of
from gateway.prices import TokenPrices
from gateway.store.address import Database
from gateway.store.connection import DATABASE, open_for_reading, open_for_writing
from gateway.store.migrate import migrate
from gateway.store.principal import Principal
from gateway.store.writer import Writer
from runtime.settings import ConfigError, Settings, parse
from tests.gateway.accounts import add_tenant
from tests.gateway.money.books import tamper
from tests.gateway.records import FakeClock

ACME, BETA = Principal("tn_1", "acme", "key_1"), Principal("tn_2", "beta", "key_2")
MODEL = """
[[models]]
id = "m"
engine = "fake"
price = {{ input = "{price}" }}
"""
CONTRACT = """
[[tenants]]
name = "beta"
prices = [{ model = "m", currency = "EUR", input = "7", cached_input = "0", output = "0" }]
"""
FUTURE = """
[[models.prices]]
effective_from = 1970-01-02
currency = "USD"
input = "9"
cached_input = "0"
output = "0"
"""
DAY_US = 86_400_000_000


def text(price: str) -> str:
    return MODEL.format(price=price)


class Store:
    """A store, and the books of any number of gateways on it."""

    def __init__(self, path: Database, stack: ExitStack) -> None:
        self.path, self.clock, self.stack = path, FakeClock(), stack

    def book(self, config: str) -> PriceBook:
        writer = Writer(self.path)
        writer.start()
        self.stack.callback(writer.close)
        return PriceBook(wanted_of(parse(config, "x")[0]), writer, self.clock, Door(1))

    def rows(self) -> list[tuple[Any, ...]]:
        with closing(open_for_reading(self.path)) as db:
            return db.execute(
                "SELECT model_id, tenant_id, currency, input_pico, effective_from, reason"
                " FROM price_version ORDER BY created_at, effective_from"
            ).fetchall()


@pytest.fixture
def store(database: Database) -> Iterator[Store]:
    with closing(open_for_writing(database)) as db:
        add_tenant(db)
    with ExitStack() as stack:
        yield Store(database, stack)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Store]:
    """A state folder's own store."""
    migrate(tmp_path / DATABASE)
    with closing(open_for_writing(tmp_path / DATABASE)) as db:
        add_tenant(db)
    with ExitStack() as stack:
        yield Store(tmp_path / DATABASE, stack)


def model(config: str) -> Deployment:
    return catalog_of(parse(config, "x")[0].models, {}).deployment("m", 0)


async def input_price(book: PriceBook, principal: Principal = ACME) -> tuple[int, str]:
    terms = await book.terms(principal, model(text("1")))
    return terms.agreed.prices.input, terms.agreed.prices.currency


async def test_prices_are_versions_in_the_store_once(store: Store) -> None:
    for _ in range(3):
        await store.book(text("1")).sync()
        store.clock.us += 10
    assert store.rows() == [("m", None, "USD", 1_000_000, 1_000, "first")]


async def test_two_gateways_at_once_add_one_version(store: Store) -> None:
    books = [store.book(text("1")) for _ in range(6)]
    await asyncio.gather(*(book.sync() for book in books))
    assert len(store.rows()) == 1
    versions = {(await book.terms(ACME, model(text("1")))).agreed.version_id for book in books}
    assert len(versions) == 1


async def test_a_changed_price_counts_from_now_and_not_for_who_was_admitted(store: Store) -> None:
    old = store.book(text("1"))
    before = await old.terms(ACME, model(text("1")))
    store.clock.us = 5_000
    new = store.book(text("2"))
    after = await new.terms(ACME, model(text("2")))
    assert (before.agreed.prices.input, after.agreed.prices.input) == (1_000_000, 2_000_000)
    assert (before.agreed.since, after.agreed.since) == (1_000, 5_000)
    assert [row[3:] for row in store.rows()] == [
        (1_000_000, 1_000, "first"),
        (2_000_000, 5_000, "changed"),
    ]


async def test_an_announced_price_comes_into_force_without_a_deployment(store: Store) -> None:
    book = store.book(text("1") + FUTURE)
    assert await input_price(book) == (1_000_000, "USD")
    store.clock.us = DAY_US - 1
    assert await input_price(book) == (1_000_000, "USD")
    store.clock.us = DAY_US
    assert await input_price(book) == (9_000_000, "USD")


async def test_a_contract_is_its_tenants_alone_with_the_list_beside_it(store: Store) -> None:
    with closing(open_for_writing(store.path)) as db:
        add_tenant(db, "beta", "tn_2")
    book = store.book(text("1") + CONTRACT)
    terms = await book.terms(BETA, model(text("1")))
    assert terms.agreed.prices == TokenPrices("EUR", 7_000_000, 0, 0)
    assert terms.listed.prices == TokenPrices("USD", 1_000_000, 0, 0)
    assert terms.list_prices is None
    assert await input_price(book) == (1_000_000, "USD")


async def test_a_tenant_that_is_newer_than_the_deployment_has_its_contract(store: Store) -> None:
    book = store.book(text("1") + CONTRACT)
    await book.sync()
    assert len(store.rows()) == 1
    with closing(open_for_writing(store.path)) as db:
        add_tenant(db, "beta", "tn_2")
    assert await input_price(book, BETA) == (7_000_000, "EUR")
    assert len(store.rows()) == 2


async def test_a_contract_that_is_named_no_more_ends(store: Store) -> None:
    with closing(open_for_writing(store.path)) as db:
        add_tenant(db, "beta", "tn_2")
    assert await input_price(store.book(text("1") + CONTRACT), BETA) == (7_000_000, "EUR")
    assert await input_price(store.book(text("1")), BETA) == (1_000_000, "USD")


async def test_after_a_restore_the_store_is_asked_again(store: Store) -> None:
    book = store.book(text("1"))
    await book.sync()
    tamper(store.path, "DELETE FROM price_version")
    book.forget()
    terms = await book.terms(ACME, model(text("1")))
    assert terms.agreed.version_id is not None
    assert len(store.rows()) == 1


async def test_without_a_store_nobody_is_admitted(folder: Store) -> None:
    book = folder.book(text("1"))
    assert isinstance(folder.path, Path)
    folder.path.unlink()
    with pytest.raises(StoreDown):
        await book.terms(ACME, model(text("1")))


async def test_a_price_of_the_past_is_refused_before_it_is_deployed(
    folder: Store, tmp_path: Path
) -> None:
    await folder.book(text("1")).sync()
    changed = text("2").replace(" }", ", effective_from = 1970-01-01 }")
    settings = Settings(file=parse(changed, "x")[0], config_path="", state_dir=tmp_path)
    with pytest.raises(ConfigError, match="before now") as told:
        refuse_past_prices(settings, 2_000)
    assert [fault.path for fault in told.value.report.errors] == ["models[0].price.effective_from"]
    refuse_past_prices(replace_file(settings, text("2")), 2_000)
    book = folder.book(changed)
    folder.clock.us = 5_000
    assert await input_price(book) == (1_000_000, "USD"), "what was in force stays so"


def replace_file(settings: Settings, config: str) -> Settings:
    return Settings(file=parse(config, "x")[0], config_path="", state_dir=settings.state_dir)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE price_version SET input_pico = 0",
        "DELETE FROM price_version",
        "REPLACE INTO price_version SELECT * FROM price_version",
    ],
)
async def test_a_version_never_changes(store: Store, change: str) -> None:
    await store.book(text("1")).sync()
    is_there = isinstance(store.path, Path) or not change.startswith("REPLACE")
    with (
        closing(open_for_writing(store.path)) as db,
        pytest.raises(Exception, match="not" if is_there else "REPLACE"),
    ):
        db.execute(change)
