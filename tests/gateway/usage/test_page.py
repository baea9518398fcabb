"""A tenant's own usage, in buckets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from gateway.billing import Outcome, UsageSource
from gateway.ledger import Ledger
from gateway.prices import MAX_PRICE_PICO, Terms, TokenPrices, Usage
from gateway.record import Opening, Settlement
from gateway.store.connection import open_for_writing
from gateway.store.errors import StoreUnavailable
from gateway.store.migrate import migrate
from gateway.store.writer import Writer
from gateway.usage.page import UsagePage, usage_page
from tests.gateway.accounts import add_key, add_tenant

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
FOREVER_US = 400_000 * HOUR_US
PRICES = TokenPrices("USD", input=100_000, cached_input=50_000, output=400_000)


class FakeClock:
    us = 0

    def now_us(self) -> int:
        return self.us


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    migrate(path)
    with closing(open_for_writing(path)) as db:
        add_tenant(db)
        add_tenant(db, "globex", "tn_2")
        add_key(db)
    return path


@pytest.fixture
def book(path: Path) -> Iterator[Book]:
    writer = Writer(path)
    writer.start()
    yield Book(writer)
    writer.close()


class Book:
    """Enters requests at chosen times."""

    def __init__(self, writer: Writer) -> None:
        self.clock = FakeClock()
        self.ledger = Ledger(writer, self.clock, "boot_1")
        self.entered = 0

    async def enter(
        self,
        at_us: int,
        usage: Usage | None,
        *,
        tenant_id: str = "tn_1",
        model_id: str = "m",
        prices: TokenPrices = PRICES,
        outcome: Outcome = Outcome.COMPLETED,
    ) -> None:
        self.clock.us = at_us
        self.entered += 1
        request_id = f"req_{self.entered}"
        opening = Opening(
            request_id,
            tenant_id,
            "key_1",
            "chat",
            model_id,
            "rev",
            Terms.of(prices),
            streamed=False,
        )
        record = await self.ledger.open(opening)
        source = UsageSource.UPSTREAM_FINAL
        await self.ledger.settle(record, Settlement(outcome, usage, source, 200, None, None, 1))


def starts(page: UsagePage) -> list[int]:
    return [bucket.start_time for bucket in page.data]


async def test_the_page_has_the_shape_of_openais(book: Book, path: Path) -> None:
    await book.enter(DAY_US + 5, Usage(10, 4, 3))
    await book.enter(DAY_US + HOUR_US, Usage(10, 0, 0))
    page = msgspec.to_builtins(usage_page(path, "tn_1", 0, FOREVER_US, "1d"))
    assert page == {
        "object": "page",
        "data": [
            {
                "object": "bucket",
                "start_time": 86_400,
                "end_time": 172_800,
                "results": [
                    {
                        "object": "bulkhead.usage.result",
                        "model": "m",
                        "input_tokens": 20,
                        "input_cached_tokens": 4,
                        "input_uncached_tokens": 16,
                        "output_tokens": 3,
                        "num_model_requests": 2,
                        "amount": {"value": "0.000003", "currency": "USD"},
                    }
                ],
            }
        ],
        "has_more": False,
        "next_page": None,
    }


async def test_only_buckets_with_usage_appear_in_order(book: Book, path: Path) -> None:
    for hour in (30, 2, 49):
        await book.enter(hour * HOUR_US, Usage(1, 0, 1))
    hours = [2 * 3600, 30 * 3600, 49 * 3600]
    assert starts(usage_page(path, "tn_1", 0, FOREVER_US, "1h")) == hours
    assert starts(usage_page(path, "tn_1", 0, FOREVER_US, "1d")) == [0, 86_400, 172_800]


async def test_the_start_is_inclusive_and_the_end_exclusive(book: Book, path: Path) -> None:
    for hour in (1, 2, 3):
        await book.enter(hour * HOUR_US, Usage(1, 0, 1))
    assert starts(usage_page(path, "tn_1", HOUR_US, 3 * HOUR_US, "1h")) == [3600, 7200]


async def test_a_tenant_sees_its_own_usage_only(book: Book, path: Path) -> None:
    await book.enter(0, Usage(1, 0, 1))
    await book.enter(0, Usage(1, 0, 1), tenant_id="tn_2")
    (bucket,) = usage_page(path, "tn_2", 0, FOREVER_US, "1d").data
    assert bucket.results[0].num_model_requests == 1


async def test_only_what_was_billed_counts(book: Book, path: Path) -> None:
    await book.enter(0, Usage(1, 0, 1), outcome=Outcome.UPSTREAM_ERROR)
    await book.enter(0, None)
    assert usage_page(path, "tn_1", 0, FOREVER_US, "1d").data == []


async def test_models_and_currencies_are_never_added_up(book: Book, path: Path) -> None:
    for model_id, currency in (("b", "USD"), ("a", "EUR"), ("a", "USD")):
        prices = TokenPrices(currency, 1, 1, 1)
        await book.enter(0, Usage(1, 0, 1), model_id=model_id, prices=prices)
    (bucket,) = usage_page(path, "tn_1", 0, FOREVER_US, "1d").data
    found = [(result.model, result.amount.currency) for result in bucket.results]
    assert found == [("a", "EUR"), ("a", "USD"), ("b", "USD")]


async def test_a_sum_past_64_bits_is_exact(book: Book, path: Path) -> None:
    prices = TokenPrices("USD", MAX_PRICE_PICO, 0, 1)
    for _ in range(3):
        await book.enter(0, Usage(9_000_000, 0, 1), prices=prices)
    (bucket,) = usage_page(path, "tn_1", 0, FOREVER_US, "1d").data
    assert bucket.results[0].amount.value == "27000000.000000000003"


def test_a_database_that_is_gone_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        usage_page(tmp_path / "none.db", "tn_1", 0, 1, "1h")
