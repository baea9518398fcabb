"""The statements behind the ledger. Each function runs inside a transaction of the writer.

Written out in SQL and not through SQLAlchemy. Two run for every request: these take many records
at a time, and what is told once of an hour or of the ledger is written once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from operator import itemgetter
from typing import Any, NamedTuple

from gateway.prices import Line
from gateway.store.budget_holds import give_back
from gateway.store.many import of_ids, rows_of
from gateway.store.sql import Connection, Values

MAX_INT64 = 2**63 - 1


def closed_until(db: Connection) -> int:
    """The end of the last month that is closed; 0 if none is. No record is charged before it."""
    ends_at: int = db.execute(_CLOSED_UNTIL).fetchone()[0]
    return ends_at


def insert_open(db: Connection, records: Sequence[Values]) -> None:
    """Enter open records."""
    db.executemany(_OPEN, records)


def move(db: Connection, values: Values) -> bool:
    """An open record is another model's from now on, at its prices; False if it was closed."""
    return db.execute(_MOVE, values).rowcount == 1


def insert_correction(db: Connection, values: Values) -> None:
    """Enter an open record that corrects another one: of its caller, its model and its prices."""
    db.execute(_OPEN_CORRECTION, values)


class Closing(NamedTuple):
    """How a record is closed: its columns, its lines, and the hour's sums that it is added to.

    `rollup` has the hour and the number of requests; it is None for one that isn't billed.
    """

    values: Values
    billed: Sequence[Line] = ()
    rollup: Values | None = None


def close(db: Connection, closings: Sequence[Closing], now_us: int) -> list[bool]:
    """Close records with their lines, each once: False, and nothing changed, for one that is
    closed already. They are settled now.
    """
    ids = [str(closing.values["id"]) for closing in closings]
    still_open = {record_id for (record_id,) in rows_of(db, _OPEN_AMONG, ids)}
    firsts = [_taken(still_open, record_id) for record_id in ids]
    closed = [closing for closing, is_first in zip(closings, firsts, strict=True) if is_first]
    if closed:
        # The lines go first, while the records still take them: the write lock is ours meanwhile.
        db.executemany(_ADD_LINE, [line for closing in closed for line in _line_values(closing)])
        first = next_seq(db, len(closed)) - len(closed) + 1
        ends = [
            {**closing.values, "settled_at": now_us, "seq": first + n}
            for n, closing in enumerate(closed)
        ]
        db.executemany(_CLOSE, ends)
        for sums in _sums(closed):
            _roll_up(db, sums)
    return firsts


def _taken(ids: set[str], record_id: str) -> bool:
    """Whether it was there; it isn't any more."""
    if record_id not in ids:
        return False
    ids.remove(record_id)
    return True


def _sums(closings: Sequence[Closing]) -> Iterator[dict[str, Any]]:
    """What is added to hours, as few rows as possible: of one hour, all that 64 bits hold."""
    found: dict[tuple[object, ...], dict[str, Any]] = {}
    for closing in closings:
        if closing.rollup is None:
            continue
        one = _added(closing.values, closing.rollup)
        key = _hour_of(one)
        sums = found.get(key)
        if sums is None:
            found[key] = one
        elif _fits(sums, one, "amount_pico") and _fits(sums, one, "list_amount_pico"):
            for name in _SUMMED:
                sums[name] += one[name]
        else:
            yield sums
            found[key] = one
    yield from found.values()


def _fits(sums: dict[str, Any], one: dict[str, Any], name: str) -> bool:
    return bool(abs(sums[name]) + abs(one[name]) <= MAX_INT64)


def _added(values: Values, rollup: Values) -> dict[str, Any]:
    """What one record adds. What has no list price in its currency counts at its own."""
    amount, listed = values["amount_pico"], values["list_amount_pico"]
    return {
        **rollup,
        "input_tokens": values["input_tokens"],
        "cached_input_tokens": values["cached_input_tokens"],
        "output_tokens": values["output_tokens"],
        "amount_pico": amount,
        "list_amount_pico": amount if listed is None else listed,
    }


def _roll_up(db: Connection, sums: dict[str, Any]) -> None:
    """Add to an hour's sums; what 64 bits don't hold goes into another row, a microsecond later."""
    while db.execute(_ROLL_UP, sums).rowcount == 0:
        sums["hour_at"] += 1


def _line_values(closing: Closing) -> Iterator[dict[str, object]]:
    record_id = closing.values["id"]
    for no, line in enumerate(closing.billed, start=1):
        yield {
            "record_id": record_id,
            "line_no": no,
            "sku_id": line.sku_id,
            "token_class": line.token_class,
            "quantity": line.quantity,
            "price_pico": line.price_pico,
            "amount_pico": line.amount_pico,
            "list_price_pico": line.list_price_pico,
            "list_amount_pico": line.list_amount_pico,
        }


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


_hour_of = itemgetter("tenant_id", "hour_at", "model_id", "api_key_id", "project_id", "currency")
_SUMMED = (
    *("requests", "input_tokens", "cached_input_tokens", "output_tokens"),
    *("amount_pico", "list_amount_pico"),
)

_CLOSED_UNTIL = "SELECT coalesce(max(ends_at), 0) FROM billing_period WHERE status = 'closed'"

_OPEN = """
INSERT INTO usage_record
  (id, request_id, tenant_id, api_key_id, project_id, subject, operation, model_id, model_revision,
   streamed, boot_id, config_hash, currency,
   input_price_pico, cached_input_price_pico, output_price_pico, price_version_id,
   list_input_price_pico, list_cached_input_price_pico, list_output_price_pico,
   list_price_version_id, opened_at, charge_at, state)
VALUES
  (:id, :request_id, :tenant_id, :api_key_id, :project_id, :subject, :operation, :model_id,
   :model_revision, :streamed, :boot_id, :config_hash, :currency,
   :input_price_pico, :cached_input_price_pico, :output_price_pico, :price_version_id,
   :list_input_price_pico, :list_cached_input_price_pico, :list_output_price_pico,
   :list_price_version_id, :opened_at, :charge_at, 'open')
"""

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

_ADD_LINE = """
INSERT INTO usage_line
  (record_id, line_no, sku_id, token_class, quantity, price_pico, amount_pico,
   list_price_pico, list_amount_pico)
VALUES
  (:record_id, :line_no, :sku_id, :token_class, :quantity, :price_pico, :amount_pico,
   :list_price_pico, :list_amount_pico)
"""

_CLOSE = """
UPDATE usage_record SET
  state = 'settled', seq = :seq, outcome = :outcome, billable = :billable,
  bill_reason = :bill_reason, ended_at = :ended_at, settled_at = :settled_at,
  first_token_at = :first_token_at, input_tokens = :input_tokens,
  cached_input_tokens = :cached_input_tokens, output_tokens = :output_tokens,
  usage_source = :usage_source, status_code = :status_code, finish_reason = :finish_reason,
  host_id = :host_id, attempts = :attempts, amount_pico = :amount_pico,
  list_amount_pico = :list_amount_pico, claimed_input_tokens = :claimed_input_tokens,
  claimed_output_tokens = :claimed_output_tokens
WHERE id = :id AND state = 'open'
"""

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
