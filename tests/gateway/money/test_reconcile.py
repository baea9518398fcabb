"""Each figure that isn't the sum of the records is named; hourly sums can be made anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.ledger import Ledger
from gateway.money import rollup
from gateway.money.engines import Tokens, check, hosts_of, recorded_by_host
from gateway.money.reconcile import Difference, differences, looked
from gateway.prices import MAX_PRICE_PICO, Priced, Terms, TokenPrices, Usage
from gateway.store.address import Database
from gateway.store.reader import read
from tests.gateway.money.books import enter, rows, tamper, write
from tests.gateway.records import AMOUNT, OPENING, FakeClock

HOUR_US = 3_600_000_000


def found(path: Database) -> list[Difference]:
    return read(path, lambda db: list(differences(db)))


async def test_nothing_differs_in_what_the_ledger_has_written(
    ledger: Ledger, clock: FakeClock, path: Database
) -> None:
    dear = Terms.of(TokenPrices("VND", MAX_PRICE_PICO, 0, 0))
    for hour in range(3):
        clock.us = hour * HOUR_US
        await enter(ledger)
        await enter(ledger, usage=Usage(0, 0, 0))
        await enter(ledger, usage=Usage(9_000_000, 0, 0), terms=dear)
        await enter(ledger, usage=Usage(9_000_000, 0, 0), terms=dear)
        await ledger.open(OPENING) if hour == 2 else None
    assert found(path) == []
    counts = read(path, looked)
    assert (counts.records, counts.open_records, counts.windows) == (12, 1, 0)


@pytest.mark.parametrize(
    ("change", "what", "told", "adds_up"),
    [
        ("UPDATE usage_record SET amount_pico = 1", "record_amount", "1 pico", f"{AMOUNT} pico"),
        (
            "UPDATE usage_record SET list_amount_pico = 1",
            "record_list_amount",
            "1 pico",
            f"{AMOUNT} pico",
        ),
        ("UPDATE usage_record SET output_tokens = 0", "record_amount", f"{AMOUNT} pico", "25 pico"),
        (
            "UPDATE usage_record SET output_tokens = 4",
            "record_amount",
            f"{AMOUNT} pico",
            f"{AMOUNT + 100} pico",
        ),
        (
            "UPDATE usage_record SET cached_input_tokens = 4",
            "record_amount",
            f"{AMOUNT} pico",
            f"{AMOUNT + 9} pico",
        ),
        (
            "UPDATE usage_record SET price_version_id = 'pv_gone'",
            "record_price",
            "10+1+100 pico USD",
            "no such version",
        ),
        (
            "UPDATE usage_record SET list_price_version_id = 'pv_gone'",
            "record_list_price",
            "10+1+100 pico USD",
            "no such version",
        ),
        (
            "UPDATE usage_record SET list_amount_pico = NULL",
            "record_list_amount",
            "None pico",
            f"{AMOUNT} pico",
        ),
        ("UPDATE ledger_counter SET seq = 2", "sequence", "2", "no such record"),
    ],
)
async def test_each_difference_is_named(
    ledger: Ledger, path: Database, change: str, what: str, told: str, adds_up: str
) -> None:
    await enter(ledger)
    tamper(path, change)
    one = next(one for one in found(path) if one.what == what)
    assert (one.told, one.found) == (told, adds_up)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE usage_rollup SET amount_pico = amount_pico + 1",
        "UPDATE usage_rollup SET requests = 7, list_amount_pico = 0",
        "DELETE FROM usage_rollup",
        "UPDATE usage_rollup SET model_id = 'other'",
        "UPDATE usage_rollup SET hour_at = hour_at + 3600000000",
    ],
)
async def test_sums_that_differ_are_made_anew(ledger: Ledger, path: Database, change: str) -> None:
    await enter(ledger)
    dear = Terms.of(TokenPrices("VND", MAX_PRICE_PICO, 0, 0))
    for _ in range(3):
        await enter(ledger, usage=Usage(9_000_000, 0, 0), terms=dear)
    sums = "SELECT currency, sum(amount_pico / 1000), sum(requests) FROM usage_rollup GROUP BY 1"
    before = rows(path, f"{sums} ORDER BY 1")
    tamper(path, change)
    assert {one.what for one in found(path)} == {"rollup"}
    write(path, lambda db: rollup.repair(db, [key for key, _, _ in rollup.differences(db)]))
    assert found(path) == []
    assert rows(path, f"{sums} ORDER BY 1") == before


async def test_a_gap_in_the_numbers_is_told(ledger: Ledger, path: Database) -> None:
    for _ in range(6):
        await enter(ledger)
    tamper(
        path,
        "DELETE FROM usage_record WHERE seq IN (2, 3, 6)",
    )
    told = [one.told for one in found(path) if one.what == "sequence"]
    assert told == ["2 to 3", "6"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("input_pico = 9", "9+1+100 pico USD"),
        ("cached_input_pico = 0", "10+0+100 pico USD"),
        ("output_pico = 99", "10+1+99 pico USD"),
        ("currency = 'EUR'", "10+1+100 pico EUR"),
    ],
)
async def test_a_price_that_its_version_does_not_have(
    ledger: Ledger, path: Database, change: str, told: str
) -> None:
    version = "NULL, 'USD', 10, 1, 100"
    for since, name in enumerate(("pv_list", "pv_agreed")):
        values = f"'{name}', 'm', {version}, {since}, 0, ''"
        tamper(path, f"INSERT INTO price_version VALUES ({values})")
    terms = Terms(Priced(OPENING.prices, "pv_agreed"), Priced(OPENING.prices, "pv_list"))
    await enter(ledger, terms=terms)
    elsewhere = TokenPrices("EUR", 7, 7, 7)  # a list in another currency is kept with no record
    await enter(ledger, terms=replace(terms, listed=Priced(elsewhere, "pv_elsewhere")))
    assert found(path) == []
    tamper(path, f"UPDATE price_version SET {change} WHERE id = 'pv_list'")
    (one,) = found(path)
    assert (one.what, one.told, one.found) == ("record_list_price", "10+1+100 pico USD", told)
    tamper(path, f"UPDATE price_version SET {change} WHERE id = 'pv_agreed'")
    assert {(one.what, one.found) for one in found(path)} == {
        ("record_price", told),
        ("record_list_price", told),
    }


def metrics(up: int | None = 1, **counts: Any) -> str:
    labels = 'host="host_1",model="m"'
    told = "" if up is None else f"bulkhead_host_up{{{labels}}} {up}\n"
    return told + "".join(
        f"engine_{name}_tokens_total{{{labels}}} {number}\n" for name, number in counts.items()
    )


async def test_records_are_held_beside_the_engines_own_counters(
    ledger: Ledger, path: Database
) -> None:
    await enter(ledger)
    recorded = read(path, recorded_by_host)
    (exact,) = check(hosts_of(metrics(prompt=7, cached=5, output=3)), recorded)
    assert (exact.model, exact.hosts, exact.capture, exact.faults) == ("m", 1, 1.0, [])
    assert exact.recorded == exact.billed == Tokens(7, 5, 3)
    (cut,) = check(hosts_of(metrics(prompt=14, cached=10, output=6)), recorded)
    assert (cut.capture, cut.faults) == (0.5, [])
    (more,) = check(hosts_of(metrics(prompt=7, cached=5, output=2)), recorded)
    assert more.faults == ["host_1: 3 tokens of output recorded, 2 counted"]
    (reused,) = check(hosts_of(metrics(prompt=7, cached=6, output=3)), recorded)
    assert reused.faults == ["host_1: 5 tokens of cached_input recorded, 6 reused"]
    (killed,) = check(hosts_of(metrics(None, prompt=7, cached=5, output=2)), recorded)
    assert killed.faults == [], "its last count may be older than its last answer"
    assert list(check({}, recorded)) == [], "hosts that are gone for long tell nothing"
