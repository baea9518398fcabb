"""The statements behind the ledger. Each function runs inside a transaction of the writer.

Written out in SQL and not through SQLAlchemy: two of them run for every request.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence, Set

from gateway.prices import Line

Values = Mapping[str, object]


def insert_open(db: sqlite3.Connection, values: Values) -> None:
    """Enter an open record; it's charged to the time it was opened at."""
    db.execute(_OPEN, values)


def settle(db: sqlite3.Connection, values: Values, billed: Sequence[Line]) -> bool:
    """Close a record with its lines; False, and nothing changed, if it's closed already."""
    record_id = values["id"]
    # The lines go first, while the record still takes them: the write lock is ours all the while.
    if db.execute(_IS_OPEN, (record_id,)).fetchone() is None:
        return False
    db.executemany(
        _ADD_LINE,
        [
            (record_id, no, line.sku_id, line.token_class, line.quantity, line.price_pico)
            for no, line in enumerate(billed, start=1)
        ],
    )
    return db.execute(_SETTLE, values).rowcount == 1


def orphan(db: sqlite3.Connection, is_dead: Callable[[str], bool], now_us: int) -> int:
    """Close, unbilled, the open records of the boots that are dead; how many there were.

    Which boots have any is asked first: one that starts meanwhile isn't judged.
    """
    boots = [boot_id for (boot_id,) in db.execute(_OPEN_BOOTS).fetchall()]
    dead = [{"boot_id": boot, "settled_at": now_us} for boot in boots if is_dead(boot)]
    return sum(db.execute(_ORPHAN, values).rowcount for values in dead)


def orphan_of(db: sqlite3.Connection, boot_id: str, spared: Set[str], now_us: int) -> int:
    """Close, unbilled, the open records of one boot but for some; how many there were."""
    found = [row[0] for row in db.execute(_OPEN_OF_BOOT, (boot_id,))]
    left = [
        {"id": record_id, "settled_at": now_us} for record_id in found if record_id not in spared
    ]
    db.executemany(_ORPHAN_ONE, left)
    return len(left)


_OPEN = """
INSERT INTO usage_record
  (id, request_id, tenant_id, api_key_id, operation, model_id, model_revision, streamed, boot_id,
   currency, input_price_pico, cached_input_price_pico, output_price_pico,
   opened_at, charge_at, state)
VALUES
  (:id, :request_id, :tenant_id, :api_key_id, :operation, :model_id, :model_revision, :streamed,
   :boot_id, :currency, :input_price_pico, :cached_input_price_pico, :output_price_pico,
   :opened_at, :opened_at, 'open')
"""

_IS_OPEN = "SELECT 1 FROM usage_record WHERE id = ? AND state = 'open'"

_ADD_LINE = """
INSERT INTO usage_line
  (record_id, line_no, sku_id, token_class, quantity, price_pico, amount_pico)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?5 * ?6)
"""

_SETTLE = """
UPDATE usage_record SET
  state = 'settled', outcome = :outcome, billable = :billable, bill_reason = :bill_reason,
  ended_at = :ended_at, settled_at = :settled_at, first_token_at = :first_token_at,
  input_tokens = :input_tokens, cached_input_tokens = :cached_input_tokens,
  output_tokens = :output_tokens, usage_source = :usage_source, status_code = :status_code,
  finish_reason = :finish_reason, host_id = :host_id, amount_pico = :amount_pico
WHERE id = :id AND state = 'open'
"""

_OPEN_BOOTS = "SELECT DISTINCT boot_id FROM usage_record WHERE state = 'open'"

_OPEN_OF_BOOT = "SELECT id FROM usage_record WHERE state = 'open' AND boot_id = ?"

_CLOSE = """
UPDATE usage_record SET
  state = 'orphaned', outcome = 'crashed', billable = 0, bill_reason = 'crashed',
  settled_at = :settled_at, usage_source = 'none', amount_pico = 0
WHERE state = 'open' AND
"""
_ORPHAN = f"{_CLOSE} boot_id = :boot_id"
_ORPHAN_ONE = f"{_CLOSE} id = :id"
