"""What the store itself refuses: a record that is closed never changes again."""

from __future__ import annotations

from contextlib import closing

import pytest

from gateway.ledger import Ledger
from gateway.store.address import Database, Postgres
from gateway.store.connection import open_for_writing, transaction
from gateway.store.errors import IntegrityError
from gateway.store.writer import Writer
from tests.gateway.records import COMPLETED, OPENING, FakeClock

REQUIRED = (
    "id, request_id, tenant_id, api_key_id, operation, model_id, model_revision, streamed, boot_id,"
    " currency, input_price_pico, cached_input_price_pico, output_price_pico, opened_at, charge_at"
)
CHANGES = [
    "UPDATE usage_record SET amount_pico = 0",
    "UPDATE usage_record SET state = 'open'",
    "UPDATE usage_record SET finish_reason = 'x'",
    "DELETE FROM usage_record",
    "TRUNCATE usage_record CASCADE",
    "REPLACE INTO usage_record SELECT * FROM usage_record",
    f"REPLACE INTO usage_record ({REQUIRED}, state) SELECT {REQUIRED}, 'open' FROM usage_record",
]


@pytest.mark.parametrize(
    "change",
    [
        *CHANGES,
        "UPDATE usage_line SET line_no = line_no + 7",
        "DELETE FROM usage_line",
        "TRUNCATE usage_line",
        "REPLACE INTO usage_line SELECT * FROM usage_line",
        "INSERT INTO usage_line (record_id, line_no, sku_id, token_class, quantity, price_pico,"
        " amount_pico) SELECT record_id, 9, sku_id, token_class, quantity, price_pico,"
        " amount_pico FROM usage_line LIMIT 1",
    ],
)
async def test_a_settled_record_and_its_lines_do_not_change(
    ledger: Ledger, path: Database, change: str
) -> None:
    await ledger.settle(await ledger.open(OPENING), COMPLETED)
    assert_refused(path, change)


@pytest.mark.parametrize("change", CHANGES)
async def test_an_orphan_does_not_change(
    ledger: Ledger, writer: Writer, clock: FakeClock, path: Database, change: str
) -> None:
    await ledger.open(OPENING)
    await Ledger(writer, clock, "boot_2").reap_orphans(lambda boot: False)
    assert_refused(path, change)


def assert_refused(path: Database, change: str) -> None:
    if change.startswith("REPLACE") and isinstance(path, Postgres):
        return  # it has no such statement
    if change.startswith("TRUNCATE") and not isinstance(path, Postgres):
        return
    with (
        closing(open_for_writing(path)) as db,
        pytest.raises(IntegrityError, match=r"not|no more|starts open"),
        transaction(db),
    ):
        db.execute(change)


async def test_an_amount_that_is_not_the_sum_of_its_lines_is_refused(
    ledger: Ledger, path: Database
) -> None:
    await ledger.open(OPENING)
    with (
        closing(open_for_writing(path)) as db,
        pytest.raises(IntegrityError, match="the sum of its lines"),
        transaction(db),
    ):
        db.execute(
            "UPDATE usage_record SET state = 'settled', outcome = 'completed', billable = 1,"
            " settled_at = 1, usage_source = 'none', seq = 1, amount_pico = 5"
        )
