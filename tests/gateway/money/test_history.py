"""Whatever happens to records, in whatever order: lines, records, hourly sums and usage are one."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from hypothesis import HealthCheck, given, settings, strategies as st

from gateway.billing import Outcome, UsageSource
from gateway.ledger import Ledger
from gateway.money import corrections
from gateway.money.checkpoints import key_of
from gateway.money.corrections import CorrectionError, correct
from gateway.money.reconcile import differences
from gateway.money.sealing import Sealer
from gateway.money.verifying import Verified, verify
from gateway.prices import Priced, Terms, TokenPrices, Usage
from gateway.record import OpenRecord, Settlement
from gateway.store.address import Database
from gateway.store.reader import read
from gateway.store.writer import Writer
from tests.gateway.money.books import rows, tamper, write
from tests.gateway.records import OPENING, FakeClock

LISTED = TokenPrices("USD", 20, 2, 200)
TERMS = [
    Terms.of(OPENING.prices),
    Terms(Priced(OPENING.prices), Priced(LISTED)),
    Terms(Priced(replace(LISTED, currency="EUR")), Priced(LISTED)),
]
EMPTY = (
    "DELETE FROM seal", "DELETE FROM usage_rollup", "DELETE FROM usage_record",
    "UPDATE ledger_counter SET seq = 0",
)  # fmt: skip

usages = st.none() | st.builds(
    lambda input_, cached, output: Usage(input_, min(input_, cached), output),
    *[st.integers(0, 10_000)] * 3,
)
wholes = st.none() | st.integers(0, 10_000)
steps = st.one_of(
    st.tuples(st.just("open"), st.sampled_from(TERMS)),
    st.tuples(st.just("settle"), st.integers(0, 9), st.sampled_from(Outcome), usages),
    st.tuples(st.just("correct"), st.integers(0, 9), wholes, wholes, wholes),
    st.tuples(st.just("crash")),
    st.tuples(st.just("seal"), st.integers(1, 3)),
    st.tuples(st.just("later"), st.integers(1, 3 * 3_600_000_000)),
)


class History:
    """A ledger that is killed now and then, and everything that it had open."""

    def __init__(self, path: Database, writer: Writer, clock: FakeClock) -> None:
        self.path, self.writer, self.clock = path, writer, clock
        self.open: list[OpenRecord] = []
        self.closed: list[str] = []
        self.sealer = Sealer()
        self.boots = 0
        self.ledger = Ledger(writer, clock, "boot_0")

    async def take(self, number: int, step: tuple[Any, ...]) -> None:
        kind, *given = step
        match kind:
            case "open":
                opening = replace(OPENING, request_id=f"req_{number}", terms=given[0])
                self.open.append(await self.ledger.open(opening))
            case "settle" if self.open:
                record = self.open.pop(given[0] % len(self.open))
                source = UsageSource.UPSTREAM_FINAL
                end = Settlement(given[1], given[2], source, 200, None, "h", 5)
                await asyncio.gather(*(self.ledger.settle(record, end) for _ in range(2)))
                self.closed.append(record.id)
            case "correct" if self.closed:
                record_id = self.closed[given[0] % len(self.closed)]
                should_be = corrections.Usage(*given[1:])
                job = partial(
                    correct, record_id=record_id, should_be=should_be, reason="r",
                    now_us=self.clock.us,
                )  # fmt: skip
                with suppress(CorrectionError):
                    await self.writer.run(job)
            case "crash":
                self.boots += 1
                self.ledger = Ledger(self.writer, self.clock, f"boot_{self.boots}")
                await self.ledger.reap_orphans(lambda _: False)
                self.closed += [record.id for record in self.open]
                self.open, self.sealer = [], Sealer()
            case "seal":
                await self.writer.run(partial(self.sealer.seal, most=given[0]))
            case "later":
                self.clock.us += given[0]


@given(st.lists(steps, max_size=30))
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_all_figures_are_one_after_any_history(
    path: Database, writer: Writer, history: list[tuple[Any, ...]]
) -> None:
    tamper(path, *EMPTY)
    found = History(path, writer, FakeClock())

    async def run() -> None:
        for number, step in enumerate(history):
            await found.take(number, step)

    asyncio.run(run())
    assert read(path, lambda db: list(differences(db))) == []
    while write(path, found.sealer.seal):
        pass
    key = key_of(bytes(32)).public_key()
    assert read(path, lambda db: list(verify(db, key, [], Verified()))) == []
    totals = [rows(path, query) for query in TOTALS]
    assert totals[0] == totals[1] == totals[2]
    (held,) = rows(path, "SELECT count(*) FROM usage_record WHERE state = 'open'")
    assert held == (len(found.open),)


def _sums(table: str, where: str, amount: str, uncached: str, cached: str, output: str) -> str:
    """By currency: amount, and tokens of each class; what is all zero is left out."""
    return (
        f"SELECT * FROM (SELECT currency, sum({amount}) AS a, sum({uncached}) AS b, sum({cached})"
        f" AS c, sum({output}) AS d FROM {table} {where} GROUP BY currency) AS t"
        " WHERE a <> 0 OR b <> 0 OR c <> 0 OR d <> 0 ORDER BY currency"
    )


def _of(token_class: str) -> str:
    return f"CASE l.token_class WHEN '{token_class}' THEN l.quantity ELSE 0 END"


TOTALS = (
    _sums(
        "usage_line AS l JOIN usage_record AS r ON r.id = l.record_id", "", "l.amount_pico",
        _of("input"), _of("cached_input"), _of("output"),
    ),
    _sums(
        "usage_record", "WHERE billable = 1", "amount_pico",
        "input_tokens - cached_input_tokens", "cached_input_tokens", "output_tokens",
    ),
    _sums(
        "usage_rollup", "", "amount_pico",
        "input_tokens - cached_input_tokens", "cached_input_tokens", "output_tokens",
    ),
)  # fmt: skip
