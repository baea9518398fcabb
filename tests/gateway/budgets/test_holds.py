"""Hold, then settle: what fits, what is refused, and what is given back."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.billing import Outcome
from gateway.budgets.bounds import LEAST_OUTPUT, Bound
from gateway.budgets.holds import OtherCurrency, OverBudget
from gateway.ledger import Ledger
from gateway.prices import Terms, TokenPrices
from gateway.store import backup
from gateway.store.address import Database
from gateway.store.connection import open_for_writing, transaction
from gateway.store.writer import Writer
from tests.gateway.budgets.spending import (
    HOLD,
    PRICES,
    assert_agrees,
    holds,
    make,
    opening,
    used,
    windows,
)
from tests.gateway.records import FakeClock, new_store, row


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
