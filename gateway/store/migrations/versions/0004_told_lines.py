"""The lines of a record are told by a view of it: their table goes, each was what its record says.

A line was a class of a record's tokens at its price, written beside it. PostgreSQL's view takes the
lines that a gateway of the version before still writes, and does nothing with them.
"""

from __future__ import annotations

from alembic import op

from gateway.store.errors import StoreUnavailable

revision = "0004"
down_revision = "0003"

# A record's own columns come first in the join, so that one line of it is found by its id.
_VIEW = """
CREATE VIEW usage_line AS
SELECT record_id, line_no, sku_id, token_class, quantity, price_pico,
  quantity * price_pico AS amount_pico, list_price_pico,
  quantity * list_price_pico AS list_amount_pico
FROM (
  SELECT r.id AS record_id,
    CASE c.token_class WHEN 'input' THEN 1 ELSE
      1 + CASE r.input_tokens WHEN r.cached_input_tokens THEN 0 ELSE 1 END
      + CASE WHEN c.token_class = 'output' AND r.cached_input_tokens <> 0 THEN 1 ELSE 0 END
    END AS line_no,
    r.model_id || '/' || c.token_class || '-tokens' AS sku_id,
    c.token_class,
    CASE c.token_class WHEN 'input' THEN r.input_tokens - r.cached_input_tokens
      WHEN 'cached_input' THEN r.cached_input_tokens ELSE r.output_tokens END AS quantity,
    CASE c.token_class WHEN 'input' THEN r.input_price_pico
      WHEN 'cached_input' THEN r.cached_input_price_pico ELSE r.output_price_pico END AS price_pico,
    CASE c.token_class WHEN 'input' THEN r.list_input_price_pico
      WHEN 'cached_input' THEN r.list_cached_input_price_pico
      ELSE r.list_output_price_pico END AS list_price_pico
  FROM usage_record AS r CROSS JOIN (
    SELECT 'input' AS token_class UNION ALL SELECT 'cached_input' UNION ALL SELECT 'output') AS c
  WHERE r.billable = 1) AS told
WHERE quantity <> 0
"""

_DIFFERENT = """
SELECT count(*), min(v.record_id) FROM usage_line AS v
LEFT JOIN usage_line_0003 AS o ON o.record_id = v.record_id AND o.line_no = v.line_no
WHERE o.sku_id IS NULL OR o.sku_id <> v.sku_id OR o.token_class <> v.token_class
  OR o.quantity <> v.quantity OR o.price_pico <> v.price_pico
  OR coalesce(o.list_price_pico, -1) <> coalesce(v.list_price_pico, -1)
"""
_COUNTS = "SELECT (SELECT count(*) FROM usage_line), (SELECT count(*) FROM usage_line_0003)"

_ADDED_UP = """
  (NEW.input_tokens - NEW.cached_input_tokens) * NEW.input_price_pico
  + NEW.cached_input_tokens * NEW.cached_input_price_pico
  + NEW.output_tokens * NEW.output_price_pico"""

_GIVES_BACK = """NEW.kind <> 'correction' AND
  (NEW.cached_input_tokens < 0 OR NEW.cached_input_tokens > NEW.input_tokens
   OR NEW.output_tokens < 0)"""

_SQLITE = (
    "DROP TRIGGER usage_record_stays_closed",
    f"""
CREATE TRIGGER usage_record_stays_closed BEFORE UPDATE ON usage_record
WHEN OLD.state <> 'open'
  OR NEW.billable = 1 AND (NEW.amount_pico IS NOT {_ADDED_UP} OR {_GIVES_BACK})
BEGIN
  SELECT CASE
    WHEN OLD.state <> 'open' THEN RAISE(ABORT, 'a closed usage record does not change')
    WHEN {_GIVES_BACK} THEN RAISE(ABORT, 'only a correction gives back what was not used')
    ELSE RAISE(ABORT, 'the amount of a usage record is the sum of its lines')
  END;
END
""",
)

_POSTGRES = (
    "DROP FUNCTION bulkhead_guard_line",
    f"""
CREATE OR REPLACE FUNCTION bulkhead_guard_record() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    IF NEW.state <> 'open' THEN
      RAISE EXCEPTION 'a usage record starts open'
        USING ERRCODE = 'integrity_constraint_violation';
    END IF;
  ELSIF OLD.state <> 'open' THEN
    RAISE EXCEPTION 'a closed usage record does not change'
      USING ERRCODE = 'integrity_constraint_violation';
  ELSIF NEW.billable = 1 AND {_GIVES_BACK} THEN
    RAISE EXCEPTION 'only a correction gives back what was not used'
      USING ERRCODE = 'integrity_constraint_violation';
  ELSIF NEW.billable = 1 AND NEW.amount_pico IS DISTINCT FROM {_ADDED_UP} THEN
    RAISE EXCEPTION 'the amount of a usage record is the sum of its lines'
      USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN NEW;
END $$
""",
    "CREATE RULE usage_line_is_told AS ON INSERT TO usage_line DO INSTEAD NOTHING",
)


def upgrade() -> None:
    """Put the view in the place of the table, if it tells the same; guard records by themselves."""
    bind = op.get_bind()
    is_sqlite = bind.dialect.name == "sqlite"
    if is_sqlite:  # a table that is renamed is renamed in triggers, too
        op.execute("DROP TRIGGER usage_record_adds_up")
    op.execute("ALTER TABLE usage_line RENAME TO usage_line_0003")
    bind.exec_driver_sql(_VIEW)
    different, first = bind.exec_driver_sql(_DIFFERENT).one()
    told, written = bind.exec_driver_sql(_COUNTS).one()
    if different or told != written:
        raise StoreUnavailable(
            f"The lines of the ledger aren't what its records tell, at {first or 'unknown'} first: "
            "somebody has changed them. Nothing was migrated: look with the version before, by "
            "`bulkhead ledger reconcile` and `bulkhead ledger verify`."
        )
    op.execute("DROP TABLE usage_line_0003")
    for statement in _SQLITE if is_sqlite else _POSTGRES:
        bind.exec_driver_sql(statement)
