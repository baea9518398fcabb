"""Whoever changes, removes, adds or moves a sealed record is found out."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from gateway.door import Door
from gateway.ledger import Ledger
from gateway.money.chain import link
from gateway.money.checkpoints import Signed, key_of
from gateway.money.corrections import VOID, correct
from gateway.money.keeping import Keeper
from gateway.money.sealing import BATCH, Sealer
from gateway.money.signing import EVERY_US, checkpoint, last_checkpoint
from gateway.money.verifying import Finding, Verified, verify
from gateway.prices import Usage
from gateway.store.address import Database
from gateway.store.reader import read
from gateway.store.sql import Connection
from gateway.store.writer import Writer
from tests.gateway.accounts import add_key, add_tenant
from tests.gateway.money.books import enter, rows, tamper, write
from tests.gateway.records import COMPLETED, FakeClock

CLAIMED = replace(COMPLETED, claimed=Usage(9, 0, 900))
KEY, OTHER = key_of(bytes(32)), key_of(bytes([1] * 32))


def seal_all(path: Database) -> int:
    sealer, sealed = Sealer(), 0
    while number := write(path, sealer.seal):
        sealed += number
    return sealed


def findings(path: Database, *kept: Signed) -> list[Finding]:
    return read(path, lambda db: list(verify(db, KEY.public_key(), kept, Verified())))


def kinds(path: Database, *kept: Signed) -> list[tuple[str, int]]:
    return [(one.kind, one.chain_seq) for one in findings(path, *kept)]


def sign(path: Database) -> Signed:
    return write(path, lambda db: checkpoint(db, KEY, 5))


def _add_another(db: Connection) -> None:
    add_tenant(db, "beta", "tn_2")
    add_key(db, "key_2", "tn_2", b"\2")


async def sealed(ledger: Ledger, path: Database) -> list[str]:
    write(path, _add_another)
    ids = [await enter(ledger) for _ in range(5)]
    await enter(ledger, tenant_id="tn_2", api_key_id="key_2")
    write(path, lambda db: correct(db, ids[0], VOID, "r", 9))
    assert seal_all(path) == 7
    return ids


async def test_each_tenants_records_are_one_chain_in_the_order_of_closing(
    ledger: Ledger, path: Database
) -> None:
    await sealed(ledger, path)
    found = rows(path, "SELECT tenant_id, chain_seq FROM seal ORDER BY 1, 2")
    assert found == [*(("tn_1", n) for n in range(1, 7)), ("tn_2", 1)]
    assert seal_all(path) == 0
    counts = Verified()
    assert read(path, lambda db: list(verify(db, KEY.public_key(), [], counts))) == []
    assert (counts.records, counts.chains) == (7, 2)


async def test_an_earlier_version_beside_us_seals_what_it_knows_of_our_records(
    ledger: Ledger, path: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With PostgreSQL it runs on after the migration, and whoever comes first seals."""
    await enter(ledger, CLAIMED)
    with monkeypatch.context() as earlier:
        earlier.setattr("gateway.money.sealing.link", partial(link, form=1))
        seal_all(path)
    await enter(ledger, CLAIMED)
    seal_all(path)
    assert kinds(path) == []
    tamper(path, "UPDATE usage_record SET output_tokens = 1")
    assert kinds(path) == [("changed", 1), ("changed", 2)]


@pytest.mark.parametrize("claimed", ["NULL", "10"])
async def test_what_was_claimed_is_sealed(ledger: Ledger, path: Database, claimed: str) -> None:
    await enter(ledger, CLAIMED)
    await enter(ledger)
    seal_all(path)
    tamper(path, f"UPDATE usage_record SET claimed_output_tokens = {claimed}")
    assert kinds(path) == [("changed", 1), ("changed", 2)][: 1 if claimed == "NULL" else 2]


async def test_two_sealers_on_one_store_make_one_chain(ledger: Ledger, path: Database) -> None:
    one, other = Sealer(), Sealer()
    for _ in range(4):
        await enter(ledger)
        await enter(ledger)
        write(path, lambda db: one.seal(db, 1))
        write(path, lambda db: other.seal(db, 1))
    assert write(path, other.seal) == 0
    assert findings(path) == []
    assert rows(path, "SELECT count(*) FROM seal") == [(8,)]


async def test_more_than_a_batch_and_an_older_store(ledger: Ledger, path: Database) -> None:
    for _ in range(5):
        await enter(ledger)
    sealer = Sealer()
    assert write(path, lambda db: sealer.seal(db, 3)) == 3
    assert write(path, lambda db: sealer.seal(db, 3)) == 2
    tamper(path, "DELETE FROM seal", "UPDATE ledger_counter SET seq = 4",
           "DELETE FROM usage_record WHERE seq = 5")  # fmt: skip
    assert write(path, sealer.seal) == 4, "a restore has brought back what was not sealed"
    assert findings(path) == []
    tamper(path, "DELETE FROM seal WHERE chain_seq > 2")
    for _ in range(3):
        await enter(ledger)
    assert write(path, sealer.seal) == 5, "and so it did, with more records than there were"
    assert findings(path) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (["UPDATE usage_record SET amount_pico = 0 WHERE seq = 2"], [("changed", 2)]),
        (["UPDATE usage_record SET finish_reason = 'x' WHERE seq = 4"], [("changed", 4)]),
        (["UPDATE usage_record SET config_hash = 'x' WHERE seq = 4"], [("changed", 4)]),
        (
            ["UPDATE usage_record SET list_output_price_pico = 7"],
            [*(("changed", n) for n in range(1, 7)), ("changed", 1)],
        ),
        (["UPDATE usage_record SET cached_input_tokens = 0 WHERE seq = 3"], [("changed", 3)]),
        (
            ["DELETE FROM usage_record WHERE seq = 3"],
            [("deleted", 3), ("deleted", 0)],
        ),
        (
            ["DELETE FROM seal WHERE chain_seq = 3"],
            [("deleted", 4), ("changed", 4), ("inserted", 0)],
        ),
        (
            [
                "UPDATE usage_record SET seq = 99 WHERE seq = 2",
                "UPDATE usage_record SET seq = 2 WHERE seq = 3",
                "UPDATE usage_record SET seq = 3 WHERE seq = 99",
            ],
            [("changed", 2), ("changed", 3), ("moved", 3)],
        ),
        (
            [
                "UPDATE seal SET chain_seq = 99 WHERE chain_seq = 2",
                "UPDATE seal SET chain_seq = 2 WHERE chain_seq = 3",
                "UPDATE seal SET chain_seq = 3 WHERE chain_seq = 99",
            ],
            [("changed", 2), ("changed", 3), ("moved", 3), ("changed", 4)],
        ),
        (["UPDATE ledger_counter SET seq = 9"], [("deleted", 0)]),
    ],
)  # fmt: skip
async def test_what_was_done_to_the_file_is_found(
    ledger: Ledger, path: Database, change: list[str], expected: list[tuple[str, int]]
) -> None:
    await sealed(ledger, path)
    tamper(path, *change)
    assert kinds(path) == expected


async def test_a_record_put_among_the_sealed_ones_is_found(ledger: Ledger, path: Database) -> None:
    ids = await sealed(ledger, path)
    tamper(
        path,
        "INSERT INTO usage_record (id, request_id, tenant_id, api_key_id, operation, model_id,"
        " model_revision, streamed, boot_id, currency, input_price_pico, cached_input_price_pico,"
        " output_price_pico, opened_at, charge_at, state, seq, outcome, billable, settled_at,"
        " usage_source, amount_pico) SELECT 'ur_x', 'req_x', tenant_id, api_key_id, operation,"
        " model_id, model_revision, streamed, boot_id, currency, 0, 0, 0, opened_at, charge_at,"
        f" state, 0, outcome, 1, 5, 'none', 0 FROM usage_record WHERE id = '{ids[0]}'",
    )
    assert ("inserted", "ur_x") in [(one.kind, one.record_id) for one in findings(path)]


async def test_a_chain_made_anew_fits_together_and_shows_beside_a_kept_checkpoint(
    ledger: Ledger, path: Database
) -> None:
    await sealed(ledger, path)
    kept = sign(path)
    assert kinds(path, kept) == []
    tamper(
        path,
        "DELETE FROM seal",
        "DELETE FROM checkpoint",
        "UPDATE usage_record SET finish_reason = 'x' WHERE seq = 2",
    )
    seal_all(path)
    assert kinds(path) == [], "by itself a chain shows only that it fits together"
    assert kinds(path, kept) == [("changed", 6)]


async def test_the_last_records_cut_off_show_beside_a_kept_checkpoint(
    ledger: Ledger, path: Database
) -> None:
    await sealed(ledger, path)
    kept = sign(path)
    tamper(
        path,
        "DELETE FROM checkpoint",
        "DELETE FROM seal WHERE record_id IN (SELECT id FROM usage_record WHERE seq = 7)",
        "DELETE FROM usage_record WHERE seq = 7",
        "UPDATE ledger_counter SET seq = 6",
    )
    assert kinds(path) == []
    assert kinds(path, kept) == [("deleted", 6)]


async def test_checkpoints_in_the_store_are_held_to_their_key_and_order(
    ledger: Ledger, path: Database
) -> None:
    await sealed(ledger, path)
    write(path, lambda db: checkpoint(db, KEY, 5))
    write(path, lambda db: checkpoint(db, KEY, 6))
    assert findings(path) == []
    tamper(path, "DELETE FROM checkpoint WHERE at = 5")
    assert [one.says for one in findings(path)] == [
        "a checkpoint in the store doesn't follow the one before it"
    ]
    write(path, lambda db: checkpoint(db, OTHER, 7))
    assert [one.kind for one in findings(path)] == ["checkpoint", "checkpoint"]


async def test_the_keeper_seals_and_signs_once_a_day(
    ledger: Ledger, writer: Writer, clock: FakeClock, path: Database
) -> None:
    keeper = Keeper(writer, clock, Door(1), KEY)
    await keeper.keep()
    assert rows(path, "SELECT count(*) FROM checkpoint") == [(0,)], "there is nothing to sign"
    await asyncio.gather(*(enter(ledger) for _ in range(BATCH + 1)))
    await keeper.keep()
    assert rows(path, "SELECT count(*) FROM seal") == [(BATCH + 1,)]
    await enter(ledger)
    clock.us += EVERY_US - 1
    await keeper.keep()
    assert rows(path, "SELECT count(*) FROM checkpoint") == [(1,)]
    clock.us += 1
    await keeper.keep()
    signed = write(path, last_checkpoint)
    assert signed is not None
    body = signed.body(KEY.public_key())
    assert (body.seq, body.heads[0].chain_seq) == (BATCH + 2, BATCH + 2)
    assert findings(path) == []


@pytest.mark.parametrize("table", ["seal", "checkpoint"])
async def test_seals_and_checkpoints_never_change(
    ledger: Ledger, path: Database, table: str
) -> None:
    await enter(ledger)
    sign(path)
    changes = [
        f"DELETE FROM {table}",
        f"TRUNCATE {table}",
        f"REPLACE INTO {table} SELECT * FROM {table}",
    ]
    changes += [f"UPDATE {table} SET {column} = {column}" for column in ("hash", "body")]
    before = rows(path, f"SELECT * FROM {table}")
    for change in changes:
        with pytest.raises(Exception, match=r"not|no such|does|syntax"):
            write(path, lambda db, change=change: db.execute(change))  # type: ignore[misc]
    assert rows(path, f"SELECT * FROM {table}") == before
