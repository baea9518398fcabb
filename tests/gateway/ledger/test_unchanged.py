"""What the store itself refuses: a record that is closed never changes again."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gateway.ledger import Ledger
from gateway.store.connection import open_for_writing
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
    "REPLACE INTO usage_record SELECT * FROM usage_record",
    f"REPLACE INTO usage_record ({REQUIRED}, state) SELECT {REQUIRED}, 'open' FROM usage_record",
]


@pytest.mark.parametrize(
    "change",
    [
        *CHANGES,
        "UPDATE usage_line SET line_no = line_no + 7",
        "DELETE FROM usage_line",
        "REPLACE INTO usage_line SELECT * FROM usage_line",
        "INSERT INTO usage_line (record_id, line_no, sku_id, token_class, quantity, price_pico,"
        " amount_pico) SELECT record_id, 9, sku_id, token_class, quantity, price_pico,"
        " amount_pico FROM usage_line LIMIT 1",
    ],
)
async def test_a_settled_record_and_its_lines_do_not_change(
    ledger: Ledger, path: Path, change: str
) -> None:
    await ledger.settle(await ledger.open(OPENING), COMPLETED)
    assert_refused(path, change)


@pytest.mark.parametrize("change", CHANGES)
async def test_an_orphan_does_not_change(
    ledger: Ledger, writer: Writer, clock: FakeClock, path: Path, change: str
) -> None:
    await ledger.open(OPENING)
    await Ledger(writer, clock, "boot_2").reap_orphans(lambda boot: False)
    assert_refused(path, change)


def assert_refused(path: Path, change: str) -> None:
    with (
        closing(open_for_writing(path)) as db,
        pytest.raises(sqlite3.IntegrityError, match=r"not|no more|starts open"),
    ):
        db.execute(change)


async def test_an_amount_that_is_not_the_sum_of_its_lines_is_refused(
    ledger: Ledger, path: Path
) -> None:
    await ledger.open(OPENING)
    with (
        closing(open_for_writing(path)) as db,
        pytest.raises(sqlite3.IntegrityError, match="the sum of its lines"),
    ):
        db.execute(
            "UPDATE usage_record SET state = 'settled', outcome = 'completed', billable = 1,"
            " settled_at = 1, usage_source = 'none', seq = 1, amount_pico = 5"
        )
