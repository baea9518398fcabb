"""The statements behind the ledger. Each function runs inside a transaction of the writer.

Written out in SQL and not through SQLAlchemy: two of them run for every request.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence, Set

from gateway.prices import Line

Values = Mapping[str, object]


def insert_open(db: sqlite3.Connection, values: Values) -> int:
    """Enter an open record; it's charged to the time it was opened at.

    Returns how many budgets its tenant has.
    """
    budgets: int = db.execute(_OPEN, values).fetchone()[0]
    return budgets


def settle(db: sqlite3.Connection, values: Values, billed: Sequence[Line]) -> int | None:
    """Close a record with its lines; None, and nothing changed, if it's closed already.

    Returns how many budgets its tenant has.
    """
    record_id = values["id"]
    # The lines go first, while the record still takes them: the write lock is ours all the while.
    if db.execute(_IS_OPEN, {"id": record_id}).fetchone() is None:
        return None
    for line_no, line in enumerate(billed, start=1):
        db.execute(_ADD_LINE, _line_values(record_id, line_no, line))
    budgets: int = db.execute(_SETTLE, {**values, "seq": next_seq(db)}).fetchone()[0]
    return budgets


def _line_values(record_id: object, line_no: int, line: Line) -> Values:
    return {
        "record_id": record_id,
        "line_no": line_no,
        "sku_id": line.sku_id,
        "token_class": line.token_class,
        "quantity": line.quantity,
        "price_pico": line.price_pico,
        "amount_pico": line.amount_pico,
    }


def next_seq(db: sqlite3.Connection) -> int:
    """The number of the record that is closed now: no gap, and none twice."""
    seq: int = db.execute(_NEXT_SEQ).fetchone()[0]
    return seq


def orphan(db: sqlite3.Connection, is_dead: Callable[[str], bool], now_us: int) -> int:
    """Close, unbilled, the open records of the boots that are dead; how many there were.

    Which boots have any is asked first: one that starts meanwhile isn't judged.
    """
    boots = [boot_id for (boot_id,) in db.execute(_OPEN_BOOTS).fetchall()]
    return sum(orphan_of(db, boot, frozenset(), now_us) for boot in boots if is_dead(boot))


def orphan_of(db: sqlite3.Connection, boot_id: str, spared: Set[str], now_us: int) -> int:
    """Close, unbilled, the open records of one boot but for some; how many there were."""
    found = [row[0] for row in db.execute(_OPEN_OF_BOOT, {"boot_id": boot_id}).fetchall()]
    left = [record_id for record_id in found if record_id not in spared]
    for record_id in left:
        db.execute(_ORPHAN, {"id": record_id, "settled_at": now_us, "seq": next_seq(db)})
    return len(left)


# Archived ones, too: what was held in them is given back. Told by a statement that runs anyway.
_BUDGETS = "(SELECT count(*) FROM budget WHERE budget.tenant_id = usage_record.tenant_id)"

_OPEN = f"""
INSERT INTO usage_record
  (id, request_id, tenant_id, api_key_id, operation, model_id, model_revision, streamed, boot_id,
   currency, input_price_pico, cached_input_price_pico, output_price_pico,
   opened_at, charge_at, state)
VALUES
  (:id, :request_id, :tenant_id, :api_key_id, :operation, :model_id, :model_revision, :streamed,
   :boot_id, :currency, :input_price_pico, :cached_input_price_pico, :output_price_pico,
   :opened_at, :opened_at, 'open')
RETURNING {_BUDGETS}
"""  # noqa: S608

_IS_OPEN = "SELECT 1 FROM usage_record WHERE id = :id AND state = 'open'"

_ADD_LINE = """
INSERT INTO usage_line
  (record_id, line_no, sku_id, token_class, quantity, price_pico, amount_pico)
VALUES
  (:record_id, :line_no, :sku_id, :token_class, :quantity, :price_pico, :amount_pico)
"""

_SETTLE = f"""
UPDATE usage_record SET
  state = 'settled', seq = :seq,
  outcome = :outcome, billable = :billable, bill_reason = :bill_reason,
  ended_at = :ended_at, settled_at = :settled_at, first_token_at = :first_token_at,
  input_tokens = :input_tokens, cached_input_tokens = :cached_input_tokens,
  output_tokens = :output_tokens, usage_source = :usage_source, status_code = :status_code,
  finish_reason = :finish_reason, host_id = :host_id, amount_pico = :amount_pico
WHERE id = :id AND state = 'open'
RETURNING {_BUDGETS}
"""  # noqa: S608

_OPEN_BOOTS = "SELECT DISTINCT boot_id FROM usage_record WHERE state = 'open'"

_OPEN_OF_BOOT = "SELECT id FROM usage_record WHERE state = 'open' AND boot_id = :boot_id"

_ORPHAN = """
UPDATE usage_record SET
  state = 'orphaned', seq = :seq, outcome = 'crashed', billable = 0, bill_reason = 'crashed',
  settled_at = :settled_at, usage_source = 'none', amount_pico = 0
WHERE id = :id AND state = 'open'
"""

_NEXT_SEQ = "UPDATE ledger_counter SET seq = seq + 1 WHERE id = 1 RETURNING seq"
