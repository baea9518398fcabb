"""Hold, then settle: what fits, what is refused, and what is given back."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.billing import Outcome
from gateway.budgets.bounds import LEAST_OUTPUT, Bound
from gateway.budgets.budgets import archive, set_limit
from gateway.budgets.holds import OtherCurrency, OverBudget
from gateway.ledger import Ledger
from gateway.prices import Terms, TokenPrices, Usage
from gateway.record import Settlement
from gateway.store import backup
from gateway.store.address import Database
from gateway.store.connection import open_for_writing, transaction
from gateway.store.sql import Connection, Cursor
from gateway.store.writer import Writer
from tests.gateway.budgets.spending import (
    HOLD,
    PRICES,
    assert_agrees,
    holds,
    make,
    opening,
    windows,
)
from tests.gateway.records import COMPLETED, FakeClock, new_store, row

DAY = 86_400_000_000


def used(tokens: int) -> Settlement:
    return replace(COMPLETED, usage=Usage(tokens, 0, 0))


async def test_the_most_is_held_and_what_it_cost_is_spent(ledger: Ledger, path: Database) -> None:
    make(path)
    record = await ledger.open(opening())
    assert windows(path) == [(0, 0, HOLD)]
    await ledger.settle(record, used(123))
    assert windows(path) == [(0, 123, 0)]
    assert not holds(path)
    assert_agrees(path)


@pytest.mark.parametrize(
    "outcome", [Outcome.UPSTREAM_ERROR, Outcome.REFUSED, Outcome.TIMEOUT, Outcome.INTEGRITY_ABORT]
)
async def test_what_is_not_billed_is_not_spent(
    ledger: Ledger, path: Database, outcome: Outcome
) -> None:
    make(path)
    record = await ledger.open(opening())
    await ledger.settle(record, replace(used(123), outcome=outcome))
    assert windows(path) == [(0, 0, 0)]
    assert_agrees(path)


async def test_200_at_once_at_a_budget_for_one_admit_one(ledger: Ledger, path: Database) -> None:
    make(path, limit_nano=2 * HOLD - 1)
    asked = [ledger.open(opening()) for _ in range(200)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, OverBudget)]
    assert len(refused) == 199
    assert windows(path) == [(0, 0, HOLD)]
    assert {fault.reason for fault in refused} == {"held"}  # it would fit if nothing else ran


async def test_replicas_share_a_budget(ledger: Ledger, clock: FakeClock, path: Database) -> None:
    """Each has a connection of its own; the store says who comes first."""
    make(path, limit_nano=3 * HOLD)
    writers = [Writer(path) for _ in range(3)]
    for writer in writers:
        writer.start()
    replicas = [ledger, *(Ledger(w, clock, f"boot_r{i}") for i, w in enumerate(writers))]
    asked = [replica.open(opening()) for _ in range(25) for replica in replicas]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    for writer in writers:
        await asyncio.to_thread(writer.close)
    assert len([answer for answer in answers if isinstance(answer, OverBudget)]) == 97
    assert windows(path) == [(0, 0, 3 * HOLD)]


async def test_all_budgets_hold_or_none(ledger: Ledger, path: Database) -> None:
    make(path, limit_nano=5 * HOLD)
    make(path, scope_kind="key", scope_id="key_1", limit_nano=HOLD)
    make(path, model_id="m", limit_nano=3 * HOLD)
    make(path, model_id="another", limit_nano=1)
    make(path, scope_kind="key", scope_id="key_1", limit_nano=1, model_id="another")
    await ledger.open(opening())
    with pytest.raises(OverBudget) as caught:
        await ledger.open(opening())
    assert caught.value.account.budget.scope_kind == "key"
    assert [held for _, _, held in windows(path)] == [HOLD, HOLD, HOLD, 0, 0]


async def test_a_request_that_is_refused_leaves_nothing(ledger: Ledger, path: Database) -> None:
    make(path, limit_nano=HOLD - 1, period="daily")
    with pytest.raises(OverBudget) as caught:
        await ledger.open(opening())
    assert caught.value.reason == "limit"
    assert caught.value.output_that_fits == 99
    with closing(open_for_writing(path)) as db:
        assert db.execute("SELECT count(*) FROM usage_record").fetchone() == (0,)


async def test_another_tenants_budget_is_not_touched(ledger: Ledger, path: Database) -> None:
    with closing(open_for_writing(path)) as db, transaction(db):
        db.execute("INSERT INTO tenant (id, name, is_demo, created_at) VALUES ('tn_2','b',0,0)")
    make(path, tenant_id="tn_2", scope_id="tn_2", limit_nano=1)
    await ledger.open(opening())
    assert windows(path) == [(0, 0, 0)]


async def test_an_answer_without_a_limit_is_cut_to_what_is_left(
    ledger: Ledger, path: Database
) -> None:
    make(path, limit_nano=HOLD - 100 + 2 * LEAST_OUTPUT)
    default = Bound(HOLD - 100, 100, is_default=True)
    record = await ledger.open(opening(bound=default))
    assert record.output_cut == 2 * LEAST_OUTPUT
    assert windows(path) == [(0, 0, HOLD - 100 + 2 * LEAST_OUTPUT)]


@pytest.mark.parametrize("short", [1, LEAST_OUTPUT, 200])
async def test_it_is_not_cut_to_next_to_nothing(ledger: Ledger, path: Database, short: int) -> None:
    make(path, limit_nano=HOLD - 100 + LEAST_OUTPUT - short)
    with pytest.raises(OverBudget):
        await ledger.open(opening(bound=Bound(HOLD - 100, 100, is_default=True)))


async def test_a_model_in_another_currency_is_refused(ledger: Ledger, path: Database) -> None:
    make(path)
    with pytest.raises(OtherCurrency):
        await ledger.open(opening(terms=Terms.of(replace(PRICES, currency="EUR"))))
    assert windows(path) == [(0, 0, 0)]


async def test_what_costs_nothing_needs_no_budget(ledger: Ledger, path: Database) -> None:
    make(path, limit_nano=1)
    record = await ledger.open(opening(terms=Terms.of(TokenPrices("EUR", 0, 0, 0))))
    await ledger.settle(record, used(5))
    assert windows(path) == [(0, 0, 0)]


async def test_more_than_was_held_is_billed_and_spent_in_full(
    ledger: Ledger, path: Database
) -> None:
    """Only a server that tells more tokens than it was sent and allowed can do this."""
    make(path, limit_nano=HOLD)
    record = await ledger.open(opening())
    await ledger.settle(record, used(HOLD + 500))
    assert row(path, record.id)["amount_pico"] == (HOLD + 500) * 1000
    assert windows(path) == [(0, HOLD + 500, 0)]
    with pytest.raises(OverBudget):
        await ledger.open(opening())
    assert_agrees(path)


async def test_amounts_are_rounded_up_record_by_record(ledger: Ledger, path: Database) -> None:
    make(path)
    third = TokenPrices("USD", input=333, cached_input=333, output=333)
    for tokens in (1, 2, 3, 4):
        await ledger.settle(await ledger.open(opening(terms=Terms.of(third))), used(tokens))
    assert windows(path) == [(0, 1 + 1 + 1 + 2, 0)]
    assert_agrees(path)


async def test_what_a_dead_process_held_is_given_back(
    ledger: Ledger, writer: Writer, clock: FakeClock, path: Database
) -> None:
    make(path)
    other = Ledger(writer, clock, "boot_2")
    for _ in range(3):
        await ledger.open(opening())
    mine = await other.open(opening())
    assert await other.reap_orphans(lambda _: False) == 3
    assert (windows(path), holds(path)) == ([(0, 0, HOLD)], 1)
    await other.settle(mine, used(10))
    assert (windows(path), holds(path)) == ([(0, 10, 0)], 0)
    assert_agrees(path)


async def test_a_restored_copy_holds_nothing(tmp_path: Path, clock: FakeClock) -> None:
    path, copy = new_store(tmp_path), tmp_path / "copy.db"
    writer = Writer(path)
    writer.start()
    make(path)
    await Ledger(writer, clock, "boot_1").open(opening())
    await asyncio.to_thread(writer.close)
    backup.copy(path, copy)
    assert backup.close_open_records(copy, 9) == 1
    assert (windows(copy), holds(copy)) == ([(0, 0, 0)], 0)
    assert (windows(path), holds(path)) == ([(0, 0, HOLD)], 1)


async def test_what_nobody_settles_is_given_back(ledger: Ledger, path: Database) -> None:
    make(path)
    record = await ledger.open(opening())
    ledger._door.leave(record.id)  # its request has ended, and couldn't write it down
    assert await ledger.close_left_open() == 1
    assert (windows(path), holds(path)) == ([(0, 0, 0)], 0)


async def test_a_request_that_is_cancelled_while_it_opens_holds_nothing(
    ledger: Ledger, path: Database
) -> None:
    make(path)
    opened = asyncio.ensure_future(ledger.open(opening()))
    await asyncio.sleep(0)
    opened.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opened
    await ledger.flush()
    assert (windows(path), holds(path)) == ([(0, 0, 0)], 0)


async def test_it_counts_in_the_window_in_which_it_began(
    ledger: Ledger, clock: FakeClock, path: Database
) -> None:
    clock.us = 10 * DAY - 1
    make(path, clock.us, period="daily", limit_nano=HOLD)
    over_midnight = await ledger.open(opening())
    clock.us = 10 * DAY
    next_day = await ledger.open(opening())  # a new window, with all of its limit
    await ledger.settle(over_midnight, used(7))
    await ledger.settle(next_day, used(9))
    assert windows(path) == [(9 * DAY, 7, 0), (10 * DAY, 9, 0)]
    assert_agrees(path)


async def test_a_changed_zone_counts_from_the_next_window_on(
    ledger: Ledger, clock: FakeClock, path: Database
) -> None:
    clock.us = 10 * DAY
    make(path, clock.us, period="daily", limit_nano=3 * HOLD)
    with closing(open_for_writing(path)) as db, transaction(db):
        db.execute("UPDATE tenant SET timezone = 'Asia/Tokyo'")  # its days begin at 15:00Z
    hour = DAY // 24
    for clock.us in (10 * DAY + 20 * hour, 11 * DAY + hour, 11 * DAY + 20 * hour):
        await ledger.open(opening())
    with closing(open_for_writing(path)) as db:
        found = db.execute("SELECT starts_at, ends_at FROM budget_window ORDER BY 1").fetchall()
    first, short, whole = found
    assert first == (10 * DAY, 11 * DAY)
    assert short == (11 * DAY, 11 * DAY + 15 * hour)
    assert whole == (11 * DAY + 15 * hour, 12 * DAY + 15 * hour)
    assert_agrees(path)


async def test_a_zone_that_this_machine_lost_is_taken_for_utc(
    ledger: Ledger, clock: FakeClock, path: Database
) -> None:
    clock.us = 10 * DAY
    make(path, clock.us, period="daily")
    with closing(open_for_writing(path)) as db, transaction(db):
        db.execute("UPDATE tenant SET timezone = 'Mars/Olympus'")
    clock.us = 11 * DAY
    await ledger.open(opening())
    assert [starts for starts, _, _ in windows(path)] == [10 * DAY, 11 * DAY]


async def test_a_replica_whose_clock_lags_opens_the_window_before(
    ledger: Ledger, clock: FakeClock, path: Database
) -> None:
    clock.us = 10 * DAY
    make(path, clock.us, period="daily")
    for clock.us in (13 * DAY, 12 * DAY - 1):
        await ledger.open(opening())
    assert [starts for starts, _, _ in windows(path)] == [10 * DAY, 11 * DAY, 13 * DAY]


async def test_what_the_day_has_seen_counts_in_a_new_budget(
    ledger: Ledger, clock: FakeClock, path: Database
) -> None:
    clock.us = 10 * DAY
    before = await ledger.open(opening())
    await ledger.settle(before, used(50))
    runs = await ledger.open(opening())
    from_yesterday = replace(runs, id=runs.id)
    clock.us += 5
    make(path, clock.us, period="daily")
    make(path, clock.us, period="total")
    await ledger.settle(from_yesterday, used(30))  # without a hold, and yet it was spent today
    assert windows(path) == [(10 * DAY, 80, 0), (10 * DAY + 5, 0, 0)]
    assert_agrees(path)


async def test_a_budget_that_was_archived_holds_nobody(
    ledger: Ledger, clock: FakeClock, path: Database
) -> None:
    account = make(path, clock.us, limit_nano=HOLD)
    clock.us += 1
    runs = await ledger.open(opening())
    clock.us += 1
    with closing(open_for_writing(path)) as db, transaction(db):
        archive(db, account.budget.id, clock.us)
    later = await ledger.open(opening())
    await ledger.settle(runs, used(3))
    await ledger.settle(later, used(4))
    assert windows(path) == [(1000, 3, 0)]
    assert_agrees(path)


async def test_a_limit_may_be_changed_while_requests_run(ledger: Ledger, path: Database) -> None:
    account = make(path, limit_nano=HOLD)
    runs = await ledger.open(opening())

    def change(limit_nano: int) -> None:
        with closing(open_for_writing(path)) as db, transaction(db):
            set_limit(db, account.budget.id, limit_nano, 5)

    change(2 * HOLD)
    await ledger.settle(await ledger.open(opening()), used(1))
    change(1)  # less than what is held: that stays, and nothing more fits
    with pytest.raises(OverBudget):
        await ledger.open(opening())
    await ledger.settle(runs, used(HOLD))
    assert windows(path) == [(0, HOLD + 1, 0)]
    assert_agrees(path)


async def test_a_projects_budget_is_its_keys(ledger: Ledger, path: Database) -> None:
    with closing(open_for_writing(path)) as db, transaction(db):
        db.execute(
            "INSERT INTO project (id, tenant_id, name, created_at) VALUES ('pr_1','tn_1','p',0)"
        )
    make(path, scope_kind="project", scope_id="pr_1", limit_nano=HOLD)
    await ledger.open(opening())
    await ledger.open(opening(project_id="pr_1"))
    with pytest.raises(OverBudget):
        await ledger.open(opening(project_id="pr_1"))
    assert windows(path) == [(0, 0, HOLD)]


async def test_a_tokens_caller_has_no_key_but_its_tenants_budget(
    ledger: Ledger, path: Database
) -> None:
    make(path, limit_nano=HOLD)
    token = {"api_key_id": None, "subject": "https://id.example|ann"}
    await ledger.open(opening(**token))
    with pytest.raises(OverBudget):
        await ledger.open(opening(**token))


async def test_a_bound_beyond_64_bits_is_refused(ledger: Ledger, path: Database) -> None:
    make(path)
    dear = Terms.of(TokenPrices("USD", 10**12, 10**12, 10**12))
    with pytest.raises(OverBudget):
        await ledger.open(opening(terms=dear, bound=Bound(2**22, 2**31, is_default=False)))


class Counting:
    """A connection that counts its statements, as the jobs of a request see it."""

    def __init__(self, db: Connection) -> None:
        self._db = db
        self.statements = 0

    def execute(self, statement: str, values: Any = ()) -> Cursor:
        self.statements += 1
        return self._db.execute(statement, values)

    def executemany(self, statement: str, values: Any) -> Cursor:
        self.statements += 1
        return self._db.executemany(statement, values)


@dataclass
class CountingWriter:
    """Runs jobs at once, and keeps how many statements each took."""

    db: Connection
    counts: list[int] = field(default_factory=list)

    async def run(self, job: Any) -> Any:
        counting = Counting(self.db)
        try:
            return job(counting)
        finally:
            self.counts.append(counting.statements)


@pytest.mark.parametrize(
    ("budgets", "opens", "settles"),
    [
        (0, 1, 4),  # enter it; its number, its lines, its end, the hour's sums
        (1, 1 + 3, 4 + 3),  # which apply, held in each, noted; taken back, which apply, booked
        (3, 1 + 7, 4 + 5),
    ],
)
async def test_what_requests_cost_in_statements(
    path: Database, clock: FakeClock, budgets: int, opens: int, settles: int
) -> None:
    for _ in range(budgets):
        make(path)
    with closing(open_for_writing(path)) as db:
        writer = CountingWriter(db)
        ledger = Ledger(cast("Writer", writer), clock, "boot_1")
        await ledger.settle(await ledger.open(opening()), used(5))
    assert writer.counts == [opens, settles]
