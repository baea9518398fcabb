"""A tenant's own usage, in buckets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from itertools import combinations
from pathlib import Path

import msgspec
import pytest

from gateway.billing import Outcome, UsageSource
from gateway.ledger import Ledger
from gateway.prices import MAX_PRICE_PICO, Terms, TokenPrices, Usage
from gateway.record import Opening, Settlement
from gateway.store.address import Database
from gateway.store.connection import open_for_writing, transaction
from gateway.store.errors import StoreUnavailable
from gateway.store.writer import Writer
from gateway.usage.page import Bucket, BucketWidth, Question, UsagePage, usage_page
from gateway.usage.sums import Filters, Grouped
from tests.gateway.accounts import add_key, add_tenant
from tests.gateway.usage.history import DECEMBER, OCTOBER, fill

Found = dict[tuple[str, ...], list[Decimal]]

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
FOREVER_US = 400_000 * HOUR_US
PRICES = TokenPrices("USD", input=100_000, cached_input=50_000, output=400_000)


class FakeClock:
    us = 0

    def now_us(self) -> int:
        return self.us


@pytest.fixture
def book(database: Database) -> Iterator[Book]:
    with closing(open_for_writing(database)) as db, transaction(db):
        add_tenant(db)
        add_tenant(db, "globex", "tn_2")
        add_key(db)
    writer = Writer(database)
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


def buckets(
    database: Database,
    tenant_id: str,
    start_us: int = 0,
    end_us: int = FOREVER_US,
    width: BucketWidth = "1d",
) -> list[Bucket]:
    return usage_page(database, Question(Filters(tenant_id), start_us, end_us, width))[0]


def starts(buckets: list[Bucket]) -> list[int]:
    return [bucket.start_time for bucket in buckets]


async def test_the_page_has_the_shape_of_openais(book: Book, database: Database) -> None:
    await book.enter(DAY_US + 5, Usage(10, 4, 3))
    await book.enter(DAY_US + HOUR_US, Usage(10, 0, 0))
    page = msgspec.to_builtins(UsagePage(buckets(database, "tn_1")))
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
                        "project_id": None,
                        "api_key_id": None,
                        "input_tokens": 20,
                        "input_cached_tokens": 4,
                        "input_uncached_tokens": 16,
                        "output_tokens": 3,
                        "num_model_requests": 2,
                        "amount": {"value": "0.000003", "currency": "USD"},
                        "list_amount": {"value": "0.000003", "currency": "USD"},
                    }
                ],
            }
        ],
        "has_more": False,
        "next_page": None,
    }


async def test_only_buckets_with_usage_appear_in_order(book: Book, database: Database) -> None:
    for hour in (30, 2, 49):
        await book.enter(hour * HOUR_US, Usage(1, 0, 1))
    hours = [2 * 3600, 30 * 3600, 49 * 3600]
    assert starts(buckets(database, "tn_1", width="1h")) == hours
    assert starts(buckets(database, "tn_1", width="1d")) == [0, 86_400, 172_800]


async def test_the_start_is_inclusive_and_the_end_exclusive(book: Book, database: Database) -> None:
    for hour in (1, 2, 3):
        await book.enter(hour * HOUR_US, Usage(1, 0, 1))
    assert starts(buckets(database, "tn_1", HOUR_US, 3 * HOUR_US, "1h")) == [3600, 7200]


async def test_a_tenant_sees_its_own_usage_only(book: Book, database: Database) -> None:
    await book.enter(0, Usage(1, 0, 1))
    await book.enter(0, Usage(1, 0, 1), tenant_id="tn_2")
    (bucket,) = buckets(database, "tn_2", width="1d")
    assert bucket.results[0].num_model_requests == 1


async def test_only_what_was_billed_counts(book: Book, database: Database) -> None:
    await book.enter(0, Usage(1, 0, 1), outcome=Outcome.UPSTREAM_ERROR)
    await book.enter(0, None)
    assert buckets(database, "tn_1", width="1d") == []


async def test_models_and_currencies_are_never_added_up(book: Book, database: Database) -> None:
    for model_id, currency in (("b", "USD"), ("a", "EUR"), ("a", "USD")):
        prices = TokenPrices(currency, 1, 1, 1)
        await book.enter(0, Usage(1, 0, 1), model_id=model_id, prices=prices)
    (bucket,) = buckets(database, "tn_1", width="1d")
    found = [(result.model, result.amount.currency) for result in bucket.results]
    assert found == [("a", "EUR"), ("a", "USD"), ("b", "USD")]


async def test_a_sum_past_64_bits_is_exact(book: Book, database: Database) -> None:
    prices = TokenPrices("USD", MAX_PRICE_PICO, 0, 1)
    for _ in range(3):
        await book.enter(0, Usage(9_000_000, 0, 1), prices=prices)
    (bucket,) = buckets(database, "tn_1", width="1d")
    assert bucket.results[0].amount.value == "27000000.000000000003"


@dataclass
class Filled:
    """The long history, in a store, and its records' sums."""

    database: Database
    by: dict[tuple[str, ...], list[int]]


@pytest.fixture
def filled(database: Database) -> Filled:
    with closing(open_for_writing(database)) as db:
        with transaction(db):
            fill(db, 200)
        rows = db.execute(
            "SELECT tenant_id, model_id, coalesce(project_id, ''), coalesce(api_key_id, ''),"
            " currency, amount_pico, coalesce(list_amount_pico, amount_pico), output_tokens"
            " FROM usage_record WHERE billable = 1"
        ).fetchall()
    by: dict[tuple[str, ...], list[int]] = {}
    for *key, amount, at_list, output in rows:
        sums = by.setdefault(tuple(key), [0, 0, 0])
        for i, number in enumerate((amount, at_list, output)):
            sums[i] += number
    return Filled(database, by)


def ask(filled: Filled, group_by: set[Grouped], filters: Filters, limit: int = 31) -> Found:
    """What all pages say together, by model, project, key and currency."""
    found: Found = {}
    from_us: int | None = OCTOBER
    while from_us is not None:
        question = Question(filters, from_us, DECEMBER, "1d", frozenset(group_by), limit)
        page, from_us = usage_page(filled.database, question)
        assert len(page) <= limit
        for result in (result for bucket in page for result in bucket.results):
            names = (result.model, result.project_id, result.api_key_id)
            key = (*(name or "" for name in names), result.amount.currency)
            sums = found.setdefault(key, [Decimal(), Decimal(), Decimal()])
            sums[0] += Decimal(result.amount.value) * 10**12
            sums[1] += Decimal(result.list_amount.value) * 10**12
            sums[2] += result.output_tokens
    return found


GROUPS: tuple[Grouped, ...] = ("model", "project_id", "api_key_id")


@pytest.mark.parametrize("size", range(4))
def test_whatever_it_is_grouped_by_it_adds_up_to_the_records(filled: Filled, size: int) -> None:
    """Corrections included, to the pico-unit, on pages of any size."""
    for group_by in combinations(GROUPS, size):
        expected: Found = {}
        for (tenant, *names, currency), numbers in filled.by.items():
            if tenant == "tn_1":
                kept = [n if g in group_by else "" for g, n in zip(GROUPS, names, strict=True)]
                sums = expected.setdefault((*kept, currency), [Decimal()] * 3)
                expected[*kept, currency] = [a + b for a, b in zip(sums, numbers, strict=True)]
        for limit in (5, 31):
            assert ask(filled, set(group_by), Filters("tn_1"), limit) == expected


def test_filters_leave_what_was_asked_for(filled: Filled) -> None:
    whole = ask(filled, set(GROUPS), Filters("tn_2"))
    one = ask(filled, set(GROUPS), Filters("tn_2", models=("small",)))
    assert one == {key: sums for key, sums in whole.items() if key[0] == "small"}
    three = Filters("tn_2", models=("small", "large", "none"), project_ids=("pr_tn_2_a",))
    assert ask(filled, set(GROUPS), three) == {
        key: sums for key, sums in whole.items() if key[1] == "pr_tn_2_a"
    }
    keys = Filters("tn_2", api_key_ids=("key_tn_2_x", "key_tn_1_x"), project_id="pr_tn_2_b")
    assert ask(filled, set(GROUPS), keys) == {
        key: sums for key, sums in whole.items() if key[1:3] == ("pr_tn_2_b", "key_tn_2_x")
    }
    assert ask(filled, set(GROUPS), Filters("tn_1", project_ids=("pr_tn_2_a",))) == {}


def test_a_period_is_of_whole_hours(filled: Filled) -> None:
    start_us, end_us = OCTOBER + 5 * DAY_US, OCTOBER + 9 * DAY_US
    whole = buckets(filled.database, "tn_1", start_us, end_us)
    assert buckets(filled.database, "tn_1", start_us + 1, end_us - 1) == whole


def test_a_database_that_is_gone_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        buckets(tmp_path / "none.db", "tn_1", 0, 1, "1h")
