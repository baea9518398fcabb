"""The statements behind the ledger. Each function runs inside a transaction of the writer.

Written out in SQL and not through SQLAlchemy. Two run for every request: these take many records
at a time, and what is told once of an hour or of the ledger is written once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from operator import add
from typing import NamedTuple

from gateway.store.budget_holds import give_back
from gateway.store.many import of_ids, rows_of
from gateway.store.sql import Connection, Values

MAX_INT64 = 2**63 - 1


def closed_until(db: Connection) -> int:
    """The end of the last month that is closed; 0 if none is. No record is charged before it."""
    ends_at: int = db.execute(_CLOSED_UNTIL).fetchone()[0]
    return ends_at


class Opened(NamedTuple):
    """The columns of an open record, but for when it is charged."""

    id: str
    request_id: str
    tenant_id: str
    api_key_id: str | None
    project_id: str | None
    subject: str | None
    operation: str
    model_id: str
    model_revision: str
    streamed: int
    boot_id: str
    config_hash: str | None
    currency: str
    input_price_pico: int
    cached_input_price_pico: int
    output_price_pico: int
    price_version_id: str | None
    list_input_price_pico: int | None
    list_cached_input_price_pico: int | None
    list_output_price_pico: int | None
    list_price_version_id: str | None
    opened_at: int


def insert_open(db: Connection, records: Sequence[tuple[Opened, int]]) -> None:
    """Enter open records, and when each is charged."""
    db.executemany(_OPEN, [(*opened, charge_at) for opened, charge_at in records])


def move(db: Connection, opened: Opened) -> bool:
    """An open record is another model's from now on, at its prices; False if it was closed."""
    return db.execute(_MOVE, opened._asdict()).rowcount == 1


def insert_correction(db: Connection, values: Values) -> None:
    """Enter an open record that corrects another one: of its caller, its model and its prices."""
    db.execute(_OPEN_CORRECTION, values)


class Closed(NamedTuple):
    """The columns that say how a record ended, but for when, and as which one, it was closed."""

    outcome: str
    billable: int
    bill_reason: str | None
    ended_at: int
    first_token_at: int | None
    input_tokens: int | None
    cached_input_tokens: int | None
    output_tokens: int | None
    usage_source: str
    status_code: int
    finish_reason: str | None
    host_id: str | None
    attempts: int
    amount_pico: int
    list_amount_pico: int | None
    claimed_input_tokens: int | None
    claimed_output_tokens: int | None
    id: str


class Hour(NamedTuple):
    """What the sums of an hour are of."""

    tenant_id: str
    hour_at: int
    model_id: str
    api_key_id: str  # '': none, as for the project
    project_id: str
    currency: str


class Closing(NamedTuple):
    """How a record is closed, and which hour's sums it is added to: None if it isn't billed."""

    closed: Closed
    hour: Hour | None = None
    requests: int = 1  # a correction is none


def close(db: Connection, closings: Sequence[Closing], now_us: int) -> list[bool]:
    """Close records, each once: False, and nothing changed, for one that is closed already. They
    are settled now.
    """
    ids = [closing.closed.id for closing in closings]
    still_open = {record_id for (record_id,) in rows_of(db, _OPEN_AMONG, ids)}
    firsts = [_taken(still_open, record_id) for record_id in ids]
    ours = [closing for closing, is_first in zip(closings, firsts, strict=True) if is_first]
    if ours:
        first = next_seq(db, len(ours)) - len(ours) + 1
        db.executemany(
            _CLOSE, [(seq, now_us, *one.closed) for seq, one in enumerate(ours, start=first)]
        )
        for hour, sums in _sums(ours):
            _roll_up(db, hour, sums)
    return firsts


def _taken(ids: set[str], record_id: str) -> bool:
    """Whether it was there; it isn't any more."""
    if record_id not in ids:
        return False
    ids.remove(record_id)
    return True


def _sums(closings: Sequence[Closing]) -> Iterator[tuple[Hour, list[int]]]:
    """What is added to hours, as few rows as possible: of one hour, all that 64 bits hold."""
    found: dict[Hour, list[int]] = {}
    for closing in closings:
        hour = closing.hour
        if hour is None:
            continue
        one = _added(closing)
        sums = found.get(hour)
        if sums is None:
            found[hour] = one
        elif _fits(sums[4], one[4]) and _fits(sums[5], one[5]):
            found[hour] = list(map(add, sums, one))
        else:
            yield hour, sums
            found[hour] = one
    yield from found.items()


def _fits(amount: int, more: int) -> bool:
    return abs(amount) + abs(more) <= MAX_INT64


def _added(closing: Closing) -> list[int]:
    """What one record adds. What has no list price in its currency counts at its own."""
    closed = closing.closed
    amount, listed = closed.amount_pico, closed.list_amount_pico
    return [
        closing.requests,
        closed.input_tokens or 0,
        closed.cached_input_tokens or 0,
        closed.output_tokens or 0,
        amount,
        amount if listed is None else listed,
    ]


def _roll_up(db: Connection, hour: Hour, sums: Sequence[int]) -> None:
    """Add to an hour's sums; what 64 bits don't hold goes into another row, a microsecond later."""
    values = {**hour._asdict(), **dict(zip(_SUMMED, sums, strict=True))}
    while db.execute(_ROLL_UP, values).rowcount == 0:
        values["hour_at"] += 1


def next_seq(db: Connection, count: int = 1) -> int:
    """The number of the last of so many records that are closed now: no gap, and none twice."""
    seq: int = db.execute(_NEXT_SEQ, {"count": count}).fetchone()[0]
    return seq


def orphan(db: Connection, is_dead: Callable[[str], bool], now_us: int) -> int:
    """Close, unbilled, the open records of the boots that are dead; how many there were.

    Which boots have any is asked first: one that starts meanwhile isn't judged.
    """
    boots = [boot_id for (boot_id,) in db.execute(_OPEN_BOOTS).fetchall()]
    return sum(orphan_of(db, boot, frozenset(), now_us) for boot in boots if is_dead(boot))


def orphan_of(db: Connection, boot_id: str, spared: Set[str], now_us: int) -> int:
    """Close, unbilled, the open records of one boot but for some; how many there were."""
    found = [row[0] for row in db.execute(_OPEN_OF_BOOT, {"boot_id": boot_id}).fetchall()]
    left = [record_id for record_id in found if record_id not in spared]
    for record_id in left:
        db.execute(_ORPHAN, {"id": record_id, "settled_at": now_us, "seq": next_seq(db)})
        give_back(db, record_id)
    return len(left)


_SUMMED = (
    *("requests", "input_tokens", "cached_input_tokens", "output_tokens"),
    *("amount_pico", "list_amount_pico"),
)

_CLOSED_UNTIL = "SELECT coalesce(max(ends_at), 0) FROM billing_period WHERE status = 'closed'"

_OPEN = f"""
INSERT INTO usage_record ({", ".join(Opened._fields)}, charge_at, state)
VALUES ({", ".join(f":{name}" for name in Opened._fields)}, :charge_at, 'open')
"""  # noqa: S608 - our own names

_MOVE = """
UPDATE usage_record SET
  model_id = :model_id, model_revision = :model_revision, currency = :currency,
  input_price_pico = :input_price_pico, cached_input_price_pico = :cached_input_price_pico,
  output_price_pico = :output_price_pico, price_version_id = :price_version_id,
  list_input_price_pico = :list_input_price_pico,
  list_cached_input_price_pico = :list_cached_input_price_pico,
  list_output_price_pico = :list_output_price_pico,
  list_price_version_id = :list_price_version_id
WHERE id = :id AND state = 'open'
"""

_COPIED = """
  tenant_id, api_key_id, project_id, subject, operation, model_id, model_revision,
  streamed, boot_id, config_hash, currency,
  input_price_pico, cached_input_price_pico, output_price_pico, price_version_id,
  list_input_price_pico, list_cached_input_price_pico, list_output_price_pico,
  list_price_version_id"""

_OPEN_CORRECTION = f"""
INSERT INTO usage_record
  (id, request_id, kind, corrects, reason, {_COPIED}, opened_at, charge_at, state)
SELECT :id, :request_id, 'correction', id, :reason, {_COPIED}, :now, :charge_at, 'open'
FROM usage_record WHERE id = :corrects
"""  # noqa: S608 - our own names

_OPEN_AMONG = of_ids("SELECT id FROM usage_record WHERE state = 'open' AND id IN (:ids)")

_CLOSE = f"""
UPDATE usage_record SET state = 'settled', seq = :seq, settled_at = :settled_at,
  {", ".join(f"{name} = :{name}" for name in Closed._fields[:-1])}
WHERE id = :id AND state = 'open'
"""  # noqa: S608 - our own names

_ROLL_UP = """
INSERT INTO usage_rollup
  (tenant_id, hour_at, model_id, api_key_id, project_id, currency,
   requests, input_tokens, cached_input_tokens, output_tokens, amount_pico, list_amount_pico)
VALUES
  (:tenant_id, :hour_at, :model_id, :api_key_id, :project_id, :currency, :requests, :input_tokens,
   :cached_input_tokens, :output_tokens, :amount_pico, :list_amount_pico)
ON CONFLICT (tenant_id, hour_at, model_id, api_key_id, project_id, currency) DO UPDATE SET
  requests = usage_rollup.requests + excluded.requests,
  input_tokens = usage_rollup.input_tokens + excluded.input_tokens,
  cached_input_tokens = usage_rollup.cached_input_tokens + excluded.cached_input_tokens,
  output_tokens = usage_rollup.output_tokens + excluded.output_tokens,
  amount_pico = usage_rollup.amount_pico + excluded.amount_pico,
  list_amount_pico = usage_rollup.list_amount_pico + excluded.list_amount_pico
WHERE usage_rollup.amount_pico <= 9223372036854775807 - abs(excluded.amount_pico)
  AND usage_rollup.list_amount_pico <= 9223372036854775807 - abs(excluded.list_amount_pico)
"""

_OPEN_BOOTS = "SELECT DISTINCT boot_id FROM usage_record WHERE state = 'open'"

_OPEN_OF_BOOT = "SELECT id FROM usage_record WHERE state = 'open' AND boot_id = :boot_id"

_ORPHAN = """
UPDATE usage_record SET
  state = 'orphaned', seq = :seq, outcome = 'crashed', billable = 0, bill_reason = 'crashed',
  settled_at = :settled_at, usage_source = 'none', amount_pico = 0
WHERE id = :id AND state = 'open'
"""

_NEXT_SEQ = "UPDATE ledger_counter SET seq = seq + :count WHERE id = 1 RETURNING seq"
