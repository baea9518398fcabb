"""What the store itself refuses: a record that is closed never changes again."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from gateway.ledger import Ledger
from gateway.prices import TOKEN_CLASSES, Usage, counts_of
from gateway.store.address import Database, Postgres
from gateway.store.connection import open_for_reading, open_for_writing, transaction
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


@pytest.mark.parametrize("change", CHANGES)
async def test_a_settled_record_does_not_change(
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


CLOSE = (
    "UPDATE usage_record SET state = 'settled', outcome = 'completed', billable = 1,"
    " settled_at = 1, usage_source = 'upstream_final', seq = 1"
)


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ("amount_pico = 5", "the sum of its lines"),  # of tokens that nobody knows
        ("input_tokens = 7, cached_input_tokens = 5, output_tokens = 3, amount_pico = 326",
         "the sum of its lines"),  # one too much
        ("input_tokens = 5, cached_input_tokens = 7, output_tokens = 3, amount_pico = 287",
         "gives back"),
        ("input_tokens = 70, cached_input_tokens = 0, output_tokens = -1, amount_pico = 600",
         "gives back"),
    ],
)  # fmt: skip
async def test_an_amount_that_is_not_that_of_its_tokens_is_refused(
    ledger: Ledger, path: Database, end: str, why: str
) -> None:
    await ledger.open(OPENING)
    with (
        closing(open_for_writing(path)) as db,
        pytest.raises(IntegrityError, match=why),
        transaction(db),
    ):
        db.execute(f"{CLOSE}, {end}")


@pytest.mark.parametrize("usage", [Usage(7, 5, 3), Usage(7, 0, 0), Usage(5, 5, 2), Usage(0, 0, 1)])
async def test_lines_are_told_of_the_classes_that_a_record_has_tokens_of(
    ledger: Ledger, path: Database, usage: Usage
) -> None:
    record = await ledger.open(OPENING)
    await ledger.settle(record, replace(COMPLETED, usage=usage))
    classes = zip(TOKEN_CLASSES, counts_of(usage), (10, 1, 100), strict=True)
    found = [one for one in classes if one[1]]
    with closing(open_for_reading(path)) as db:
        told = db.execute("SELECT * FROM usage_line ORDER BY line_no").fetchall()
    assert told == [
        (record.id, no, f"m/{name}-tokens", name, quantity, price, quantity * price, price,
         quantity * price)
        for no, (name, quantity, price) in enumerate(found, start=1)
    ]  # fmt: skip
