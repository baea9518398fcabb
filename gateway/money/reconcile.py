"""Whether all that is told of money is the sum of the records: each difference, by name.

The store compares; what agrees never gets here, so that millions of rows need no memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from gateway.budgets.spending import differences as budget_differences
from gateway.money import rollup
from gateway.money.verifying import gaps
from gateway.store.sql import Connection

What = Literal[
    "record_amount",
    "record_list_amount",
    "record_price",
    "record_list_price",
    "rollup",
    "budget_spent",
    "budget_held",
    "sequence",
]


@dataclass(frozen=True, slots=True)
class Difference:
    """Two figures that should be one. `told` is what stands there, `found` what adds up."""

    what: What
    where: str
    told: str
    found: str


@dataclass(slots=True)
class Looked:
    """How much was looked at."""

    records: int = 0
    open_records: int = 0
    rollups: int = 0
    windows: int = 0


def looked(db: Connection) -> Looked:
    """How much there is."""
    return Looked(*map(int, db.execute(_COUNTS).fetchone()))


def differences(db: Connection) -> Iterator[Difference]:
    """All differences, one kind after another."""
    yield from _records(db)
    yield from _prices(db)
    for key, kept, counted in rollup.differences(db):
        where = "/".join(str(part) for part in key if part)
        yield Difference("rollup", where, _sums(kept), _sums(counted))
    for one in budget_differences(db):
        what: What = "budget_spent" if one.what == "spent" else "budget_held"
        where = f"{one.budget_id}@{one.starts_at}"
        yield Difference(what, where, f"{one.told_nano} nano", f"{one.found_nano} nano")
    for first, last in gaps(db):
        numbers = str(first) if first == last else f"{first} to {last}"
        yield Difference("sequence", "closed records", numbers, "no such record")


def _records(db: Connection) -> Iterator[Difference]:
    for record_id, *figures in db.execute(_RECORDS):
        amount, amounts, listed, lists = map(_whole, figures)
        if amount != amounts:
            yield Difference("record_amount", record_id, f"{amount} pico", f"{amounts} pico")
        if (listed or 0) != (lists or 0):  # what was cut short has none, or nothing
            yield Difference("record_list_amount", record_id, f"{listed} pico", f"{lists} pico")


def _prices(db: Connection) -> Iterator[Difference]:
    """Records whose prices aren't those of the versions that they name."""
    named: tuple[tuple[What, str], ...] = (
        ("record_price", _named("r.price_version_id", "r.")),
        ("record_list_price", _named("r.list_price_version_id", "r.list_")),
    )
    for what, statement in named:
        for record_id, version_id, *figures in db.execute(statement):
            told, found = _said(*figures[:4]), _said(*figures[4:])
            yield Difference(what, f"{record_id}/{version_id}", told, found)


def _said(currency: str | None, *prices: Any) -> str:
    """All of a price, since any of it may differ: input, cached input, output."""
    if currency is None:
        return "no such version"
    return f"{'+'.join(str(_whole(price)) for price in prices)} pico {currency}"


def _whole(figure: Any) -> int | None:
    return None if figure is None else int(figure)


def _sums(sums: rollup.Sums) -> str:
    return (
        f"{sums.requests} requests, {sums.input_tokens}+{sums.output_tokens} tokens "
        f"({sums.cached_input_tokens} cached), {sums.amount_pico} pico, "
        f"list {sums.list_amount_pico} pico"
    )


def _costs(prices: str) -> str:
    """What the tokens of a billed record cost; numeric, since a changed price may be any number."""
    return f"""CASE billable WHEN 1 THEN
      cast(input_tokens - cached_input_tokens AS NUMERIC) * {prices}input_price_pico
      + cast(cached_input_tokens AS NUMERIC) * {prices}cached_input_price_pico
      + cast(output_tokens AS NUMERIC) * {prices}output_price_pico ELSE 0 END"""


_COUNTS = """
SELECT
  (SELECT count(*) FROM usage_record WHERE state <> 'open'),
  (SELECT count(*) FROM usage_record WHERE state = 'open'),
  (SELECT count(*) FROM usage_rollup),
  (SELECT count(*) FROM budget_window)
"""

# An unbilled record may have counts, and costs nothing.
_RECORDS = f"""
SELECT * FROM (
  SELECT id, amount_pico, {_costs("")} AS amounts, list_amount_pico,
    CASE WHEN list_input_price_pico IS NOT NULL THEN {_costs("list_")} END AS lists
  FROM usage_record
  WHERE state <> 'open') AS sums
WHERE amount_pico <> amounts OR coalesce(list_amount_pico, 0) <> coalesce(lists, 0)
"""  # noqa: S608 - our own names


def _named(version: str, prices: str) -> str:
    """Records beside the version named. A list in another currency isn't kept: NULL, and passed."""
    return f"""
SELECT r.id, {version}, r.currency,
  {prices}input_price_pico, {prices}cached_input_price_pico, {prices}output_price_pico,
  v.currency, v.input_pico, v.cached_input_pico, v.output_pico
FROM usage_record AS r LEFT JOIN price_version AS v ON v.id = {version}
WHERE {version} IS NOT NULL AND {prices}input_price_pico IS NOT NULL AND (
  v.id IS NULL OR r.currency <> v.currency OR {prices}input_price_pico <> v.input_pico
  OR {prices}cached_input_price_pico <> v.cached_input_pico
  OR {prices}output_price_pico <> v.output_pico)
"""  # noqa: S608
