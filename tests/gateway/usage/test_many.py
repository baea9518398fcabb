"""Many requests through the real ledger: all that tells of them adds up to what they were."""

from __future__ import annotations

import asyncio
import io
import json
import random
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from gateway.billing import Outcome, UsageSource, billing
from gateway.ledger import Ledger
from gateway.prices import Priced, Terms, Usage
from gateway.record import Opening, Settlement
from gateway.store.connection import open_for_writing, transaction
from gateway.store.migrate import migrate
from gateway.store.writer import Writer
from gateway.usage.export import Export, Form, Format, Granularity
from gateway.usage.page import Question, usage_page
from gateway.usage.selection import Selection
from gateway.usage.sums import Filters
from tests.gateway.usage.history import CONTRACT, EURO, LIST, NAMES, OCTOBER, TENANTS, History
from tests.gateway.usage.reading import FOCUS, RECORD, Sums, csv_rows, sums
from tests.stack import SOAK

REQUESTS = 100_000 if SOAK else 5_000
AT_ONCE = 250
STEP_US = 17_000_000
END_US = OCTOBER + (REQUESTS + 1) * STEP_US
TERMS = (
    Terms(Priced(LIST, "pv_list"), Priced(LIST, "pv_list")),
    Terms(Priced(CONTRACT, "pv_contract"), Priced(LIST, "pv_list")),
    Terms(Priced(EURO, "pv_euro"), Priced(LIST, "pv_list")),
)


class Clock:
    us = OCTOBER

    def now_us(self) -> int:
        return self.us


class Requests:
    """Makes requests, and counts by itself what they cost."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._rng = random.Random(5)
        self.sums: Sums = {}
        self.output_tokens = 0

    async def make(self, number: int) -> None:
        rng = self._rng
        self._clock.us = OCTOBER + number * STEP_US
        tenant = rng.choice(TENANTS)
        opening = Opening(
            request_id=f"req_{number}",
            tenant_id=tenant,
            api_key_id=rng.choice((f"key_{tenant}_x", f"key_{tenant}_y")),
            operation="chat",
            model_id=rng.choice(("small", "large")),
            model_revision="rev",
            terms=rng.choice(TERMS),
            streamed=True,
            project_id=rng.choice((f"pr_{tenant}_a", None)),
        )
        input_tokens = rng.randint(1, 9000)
        usage = Usage(input_tokens, rng.randint(0, input_tokens), rng.randint(0, 2000))
        outcome = rng.choices(list(Outcome), [30 if o == "completed" else 1 for o in Outcome])[0]
        settlement = Settlement(
            outcome, usage, UsageSource.UPSTREAM_FINAL, 200, None, None, rng.choice((None, 1))
        )
        self._count(opening.terms, settlement, usage)
        record = await self._ledger.open(opening)
        assert await self._ledger.settle(record, settlement)

    def _count(self, terms: Terms, settlement: Settlement, usage: Usage) -> None:
        delivered = settlement.first_token_at is not None
        if not billing(settlement.outcome, usage, delivered=delivered)[0]:
            return
        counts = (
            usage.input_tokens - usage.cached_input_tokens,
            usage.cached_input_tokens,
            usage.output_tokens,
        )
        amounts = []
        for prices in (terms.agreed.prices, terms.list_prices or terms.agreed.prices):
            each = (prices.input, prices.cached_input, prices.output)
            pico = sum(price * count for price, count in zip(each, counts, strict=True))
            amounts.append(Decimal(pico) / 10**12)
        currency = terms.agreed.prices.currency
        before = self.sums.get(currency, (Decimal(), Decimal()))
        self.sums[currency] = (before[0] + amounts[0], before[1] + amounts[1])
        self.output_tokens += usage.output_tokens


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("many") / "store.db"
    migrate(path)
    with closing(open_for_writing(path)) as db, transaction(db):
        History(db).directory()
    return path


@pytest.fixture(scope="module")
def made(path: Path) -> Requests:
    writer, clock = Writer(path), Clock()
    writer.start()
    requests = Requests(Ledger(writer, clock, "boot"), clock)

    async def make_all() -> None:
        for first in range(0, REQUESTS, AT_ONCE):
            await asyncio.gather(*map(requests.make, range(first, first + AT_ONCE)))

    try:
        asyncio.run(make_all())
    finally:
        writer.close()
    return requests


def exported(path: Path, fmt: Format, granularity: Granularity = "hour") -> bytes:
    selection = Selection(OCTOBER, END_US, 2**62)
    return b"".join(Export(path, selection, Form(fmt, "1.4", granularity), NAMES))


def test_records_add_up_to_the_requests(path: Path, made: Requests) -> None:
    assert sums(csv_rows(exported(path, "csv")), *RECORD) == made.sums
    lines = exported(path, "jsonl").splitlines()
    assert len(lines) == REQUESTS
    assert sums(map(json.loads, lines), *RECORD) == made.sums


@pytest.mark.parametrize("granularity", ["hour", "request"])
def test_charges_add_up_to_the_requests(
    path: Path, made: Requests, granularity: Granularity
) -> None:
    assert sums(csv_rows(exported(path, "focus", granularity)), *FOCUS) == made.sums
    table = pq.read_table(io.BytesIO(exported(path, "parquet", granularity)))
    assert sums(table.select(FOCUS).to_pylist(), *FOCUS) == made.sums


def test_the_usage_page_adds_up_to_the_requests(path: Path, made: Requests) -> None:
    found: Sums = {}
    output = 0
    for tenant in TENANTS:
        from_us: int | None = OCTOBER
        while from_us is not None:
            question = Question(Filters(tenant), from_us, END_US, "1h", limit=168)
            page, from_us = usage_page(path, question)
            for result in (result for bucket in page for result in bucket.results):
                before = found.get(result.amount.currency, (Decimal(), Decimal()))
                found[result.amount.currency] = (
                    before[0] + Decimal(result.amount.value),
                    before[1] + Decimal(result.list_amount.value),
                )
                output += result.output_tokens
    assert found == made.sums
    assert output == made.output_tokens
