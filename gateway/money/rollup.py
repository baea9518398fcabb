"""The hourly sums: compared with the records that they are made of, and made anew.

The store compares, so that of millions of rows only those that differ get here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from gateway.store.sql import Connection
from gateway.usage.calendar import HOUR_US

MOST = 2**62  # pico-units in a row


class Key(NamedTuple):
    """Whose sums, and of what. "" is what isn't there."""

    tenant_id: str
    hour_at: int  # microseconds UTC
    model_id: str
    api_key_id: str
    project_id: str
    currency: str


class Sums(NamedTuple):
    """What was used and billed in an hour."""

    requests: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    amount_pico: int = 0
    list_amount_pico: int = 0


def differences(db: Connection) -> Iterator[tuple[Key, Sums, Sums]]:
    """Sums as they are kept and as the records say, where these differ."""
    for row in db.execute(_DIFFERENT, {"hour": HOUR_US}):
        yield _key(row), _sums(row[12:18]), _sums(row[6:12])
    for row in db.execute(_UNFOUNDED, {"hour": HOUR_US}):
        yield _key(row), _sums(row[6:12]), Sums()


def repair(db: Connection, keys: Iterable[Key]) -> int:
    """Make these sums anew from the records; how many there were. Runs inside a transaction."""
    repaired = 0
    for key in keys:
        values = key._asdict() | {"hour": HOUR_US, "hour_end": key.hour_at + HOUR_US}
        db.execute(_FORGET, values)
        for row in db.execute(_COUNT_ONE, values).fetchall():
            _keep(db, key, _sums(row[6:12]))
        repaired += 1
    return repaired


def _keep(db: Connection, key: Key, sums: Sums) -> None:
    """In as many rows as 64 bits need, a microsecond apart."""
    rows = 1 + max(abs(sums.amount_pico), abs(sums.list_amount_pico)) // MOST
    for i in range(rows):
        part = sums if rows == 1 else Sums(*(_share(number, rows, i) for number in sums))
        values = key._asdict() | part._asdict() | {"hour_at": key.hour_at + i}
        db.execute(_KEEP, values)


def _share(number: int, parts: int, i: int) -> int:
    """The i-th of so many parts that add up to the number."""
    return number * (i + 1) // parts - number * i // parts


def _key(row: Sequence[Any]) -> Key:
    return Key(*row[:6])


def _sums(row: Sequence[Any]) -> Sums:
    return Sums(*(int(number or 0) for number in row))


_KEY = "tenant_id, hour_at, model_id, api_key_id, project_id, currency"
_SUMS = "requests, input_tokens, cached_input_tokens, output_tokens, amount_pico, list_amount_pico"


def _exact(amount: str) -> str:
    """A sum that may pass 64 bits on its way, as two halves."""
    return f"sum({amount} / 1000000) * 1000000 + sum({amount} % 1000000)"


# A correction is no request. What has no list price in its currency counts at its own.
_COUNTED = f"""
SELECT tenant_id, charge_at - charge_at % :hour AS hour_at, model_id,
  coalesce(api_key_id, '') AS api_key_id, coalesce(project_id, '') AS project_id, currency,
  sum(CASE kind WHEN 'request' THEN 1 ELSE 0 END) AS requests,
  sum(input_tokens) AS input_tokens, sum(cached_input_tokens) AS cached_input_tokens,
  sum(output_tokens) AS output_tokens, {_exact("amount_pico")} AS amount_pico,
  {_exact("coalesce(list_amount_pico, amount_pico)")} AS list_amount_pico
FROM usage_record
WHERE state = 'settled' AND billable = 1
"""  # noqa: S608 - our own names
_GROUPED = "GROUP BY 1, 2, 3, 4, 5, 6"

# An hour may have several rows, a microsecond apart.
_KEPT = f"""
SELECT tenant_id, hour_at - hour_at % :hour AS hour_at, model_id, api_key_id, project_id, currency,
  {", ".join(f"{_exact(name)} AS {name}" for name in _SUMS.split(", "))}
FROM usage_rollup {_GROUPED}
"""  # noqa: S608 - our own names
_SAME_KEY = " AND ".join(f"k.{name} = c.{name}" for name in _KEY.split(", "))
_OTHER_SUMS = " OR ".join(f"k.{name} <> c.{name}" for name in _SUMS.split(", "))
_DIFFERENT = f"""
SELECT {", ".join(f"c.{name}" for name in f"{_KEY}, {_SUMS}".split(", "))},
  {", ".join(f"k.{name}" for name in _SUMS.split(", "))}
FROM ({_COUNTED} {_GROUPED}) AS c LEFT JOIN ({_KEPT}) AS k ON {_SAME_KEY}
WHERE k.tenant_id IS NULL OR {_OTHER_SUMS}
"""  # noqa: S608 - our own names

_UNFOUNDED = f"""
SELECT {_KEY}, {_SUMS} FROM ({_KEPT}) AS k
WHERE NOT EXISTS (
  SELECT 1 FROM usage_record AS r
  WHERE r.tenant_id = k.tenant_id
    AND r.charge_at >= k.hour_at AND r.charge_at < k.hour_at + :hour
    AND r.model_id = k.model_id AND coalesce(r.api_key_id, '') = k.api_key_id
    AND coalesce(r.project_id, '') = k.project_id AND r.currency = k.currency
    AND r.state = 'settled' AND r.billable = 1)
"""  # noqa: S608 - our own names

_OF_KEY = """
  tenant_id = :tenant_id AND model_id = :model_id AND currency = :currency
  AND coalesce(api_key_id, '') = :api_key_id AND coalesce(project_id, '') = :project_id
"""
_FORGET = f"""
DELETE FROM usage_rollup WHERE {_OF_KEY} AND hour_at >= :hour_at AND hour_at < :hour_end
"""  # noqa: S608 - our own names
_COUNT_ONE = f"""
{_COUNTED} AND {_OF_KEY} AND charge_at >= :hour_at AND charge_at < :hour_end {_GROUPED}
"""
_KEEP = f"""
INSERT INTO usage_rollup ({_KEY}, {_SUMS})
VALUES ({", ".join(f":{name}" for name in f"{_KEY}, {_SUMS}".split(", "))})
"""  # noqa: S608 - our own names
