"""The statements behind the ledger. Each function runs inside a transaction of the writer.

Written out in SQL and not through SQLAlchemy: two of them run for every request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from gateway.prices import Line
from gateway.store.budget_holds import give_back
from gateway.store.sql import Connection, Values


def insert_open(db: Connection, values: Values) -> tuple[int, int]:
    """Enter an open record; the time it's charged to, and how many budgets its tenant has.

    That is when it was opened; or, if that month is closed already, the first moment after it.
    """
    charge_at, budgets = db.execute(_OPEN, values).fetchone()
    return charge_at, budgets


def move(db: Connection, values: Values) -> int | None:
    """An open record is another model's from now on, at its prices; None if it's closed already.

    Returns how many budgets its tenant has.
    """
    moved = db.execute(_MOVE, values).fetchone()
    return None if moved is None else moved[0]


def insert_correction(db: Connection, values: Values) -> None:
    """Enter an open record that corrects another one: of its caller, its model and its prices."""
    db.execute(_OPEN_CORRECTION, values)


def close(
    db: Connection, values: Values, billed: Sequence[Line], rollup: Values | None
) -> int | None:
    """Close a record with its lines; None, and nothing changed, if it's closed already.

    `rollup` names the hour's sums that a billed record is added to; None for one that isn't.
    Returns how many budgets its tenant has.
    """
    record_id = values["id"]
    seq = db.execute(_NEXT_SEQ_OF_OPEN, {"id": record_id}).fetchone()
    if seq is None:
        return None
    # The lines go first, while the record still takes them: the write lock is ours all the while.
    if billed:
        db.execute(_ADD_LINES[len(billed)], _line_values(record_id, billed))
    budgets: int = db.execute(_CLOSE, {**values, "seq": seq[0]}).fetchone()[0]
    if rollup is not None:
        _roll_up(db, {**values, **rollup})
    return budgets


def _roll_up(db: Connection, values: dict[str, object]) -> None:
    """Add to an hour's sums; what 64 bits don't hold goes into another row, a microsecond later."""
    while db.execute(_ROLL_UP, values).rowcount == 0:
        values["hour_at"] += 1  # type: ignore[operator] # it is a time


def _line_values(record_id: object, billed: Sequence[Line]) -> dict[str, object]:
    values: dict[str, object] = {"record_id": record_id}
    for no, line in enumerate(billed, start=1):
        values[f"sku_id{no}"] = line.sku_id
        values[f"token_class{no}"] = line.token_class
        values[f"quantity{no}"] = line.quantity
        values[f"price_pico{no}"] = line.price_pico
        values[f"amount_pico{no}"] = line.amount_pico
        values[f"list_price_pico{no}"] = line.list_price_pico
        values[f"list_amount_pico{no}"] = line.list_amount_pico
    return values


def next_seq(db: Connection) -> int:
    """The number of the record that is closed now: no gap, and none twice."""
    seq: int = db.execute(_NEXT_SEQ).fetchone()[0]
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


# Archived ones, too: what was held in them is given back. Told by a statement that runs anyway.
_BUDGETS = "(SELECT count(*) FROM budget WHERE budget.tenant_id = usage_record.tenant_id)"

_OPEN = f"""
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
   :list_price_version_id, :opened_at,
   (SELECT CASE WHEN max(ends_at) > :opened_at THEN max(ends_at) ELSE :opened_at END
    FROM billing_period WHERE status = 'closed'), 'open')
RETURNING charge_at, {_BUDGETS}
"""  # noqa: S608

_MOVE = f"""
UPDATE usage_record SET
  model_id = :model_id, model_revision = :model_revision, currency = :currency,
  input_price_pico = :input_price_pico, cached_input_price_pico = :cached_input_price_pico,
  output_price_pico = :output_price_pico, price_version_id = :price_version_id,
  list_input_price_pico = :list_input_price_pico,
  list_cached_input_price_pico = :list_cached_input_price_pico,
  list_output_price_pico = :list_output_price_pico,
  list_price_version_id = :list_price_version_id
WHERE id = :id AND state = 'open'
RETURNING {_BUDGETS}
"""  # noqa: S608

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

_LINE = """
  (:record_id, {no}, :sku_id{no}, :token_class{no}, :quantity{no}, :price_pico{no},
   :amount_pico{no}, :list_price_pico{no}, :list_amount_pico{no})"""

# One statement, however many lines there are: at most one a class of tokens.
_ADD_LINES = {
    count: """
INSERT INTO usage_line
  (record_id, line_no, sku_id, token_class, quantity, price_pico, amount_pico,
   list_price_pico, list_amount_pico)
VALUES"""
    + ",".join(_LINE.format(no=no) for no in range(1, count + 1))
    for count in (1, 2, 3)
}

_CLOSE = f"""
UPDATE usage_record SET
  state = 'settled', seq = :seq, outcome = :outcome, billable = :billable,
  bill_reason = :bill_reason, ended_at = :ended_at, settled_at = :settled_at,
  first_token_at = :first_token_at, input_tokens = :input_tokens,
  cached_input_tokens = :cached_input_tokens, output_tokens = :output_tokens,
  usage_source = :usage_source, status_code = :status_code, finish_reason = :finish_reason,
  host_id = :host_id, attempts = :attempts, amount_pico = :amount_pico,
  list_amount_pico = :list_amount_pico
WHERE id = :id AND state = 'open'
RETURNING {_BUDGETS}
"""  # noqa: S608

# What has no list price in its currency counts at its own.
_ROLL_UP = """
INSERT INTO usage_rollup
  (tenant_id, hour_at, model_id, api_key_id, project_id, currency,
   requests, input_tokens, cached_input_tokens, output_tokens, amount_pico, list_amount_pico)
VALUES
  (:tenant_id, :hour_at, :model_id, :api_key_id, :project_id, :currency, :requests, :input_tokens,
   :cached_input_tokens, :output_tokens, :amount_pico,
   coalesce(cast(:list_amount_pico AS BIGINT), :amount_pico))
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

_NEXT_SEQ = "UPDATE ledger_counter SET seq = seq + 1 WHERE id = 1 RETURNING seq"
_NEXT_SEQ_OF_OPEN = """
UPDATE ledger_counter SET seq = seq + 1
WHERE id = 1 AND EXISTS (SELECT 1 FROM usage_record WHERE id = :id AND state = 'open')
RETURNING seq
"""
