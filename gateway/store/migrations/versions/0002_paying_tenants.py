"""Projects, limits, budgets, prices by date, rollups, periods, seals, the audit log, replicas.

On SQLite the four tables of 0001 that grow are made anew and filled from the old ones; records that
are closed already are numbered in the order in which they were. PostgreSQL's begins here.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import text

from gateway.store.migrations.v0002 import postgres_triggers, sqlite_triggers
from gateway.store.migrations.v0002.schema import metadata

revision = "0002"
down_revision = "0001"

_GROWN = ("usage_line", "usage_record", "api_key", "tenant")  # each before what it points at

_TENANT = "id, name, is_demo, created_at"
_KEY = "id, tenant_id, digest, hint, name, created_at, revoked_at"
_RECORD = (
    "id, request_id, tenant_id, api_key_id, operation, model_id, model_revision, streamed, boot_id,"
    " currency, input_price_pico, cached_input_price_pico, output_price_pico, opened_at, charge_at,"
    " state, host_id, outcome, billable, bill_reason, first_token_at, ended_at, settled_at,"
    " input_tokens, cached_input_tokens, output_tokens, usage_source, status_code, finish_reason,"
    " amount_pico"
)
_LINE = "record_id, line_no, sku_id, token_class, quantity, price_pico, amount_pico"

_FILL = (
    f"INSERT INTO tenant ({_TENANT}) SELECT {_TENANT} FROM tenant_0001",  # noqa: S608
    f"INSERT INTO api_key ({_KEY}) SELECT {_KEY} FROM api_key_0001",  # noqa: S608
    f"""
INSERT INTO usage_record ({_RECORD}, seq)
SELECT {_RECORD}, row_number() OVER (ORDER BY settled_at, id) FROM usage_record_0001
WHERE state <> 'open'
""",  # noqa: S608
    f"""
INSERT INTO usage_record ({_RECORD}) SELECT {_RECORD} FROM usage_record_0001 WHERE state = 'open'
""",  # noqa: S608
    f"INSERT INTO usage_line ({_LINE}) SELECT {_LINE} FROM usage_line_0001",  # noqa: S608
)

_ROLL_UP = """
INSERT INTO usage_rollup
  (tenant_id, hour_at, model_id, api_key_id, project_id, currency, requests, input_tokens,
   cached_input_tokens, output_tokens, amount_pico, list_amount_pico)
SELECT tenant_id, charge_at - charge_at % 3600000000, model_id, api_key_id, '', currency, count(*),
  sum(input_tokens), sum(cached_input_tokens), sum(output_tokens), sum(amount_pico),
  sum(amount_pico)
FROM usage_record WHERE state = 'settled' AND billable = 1
GROUP BY tenant_id, charge_at - charge_at % 3600000000, model_id, api_key_id, currency
"""


def upgrade() -> None:
    """Make the tables, keep what was in the old ones, then guard them."""
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    if is_sqlite:
        _set_aside()
    metadata.create_all(op.get_bind())
    if is_sqlite:
        _fill()
    else:
        op.execute("INSERT INTO directory_version (id, version) VALUES (1, 0)")
    op.execute("INSERT INTO ledger_counter (id, seq) SELECT 1, count(seq) FROM usage_record")
    triggers = sqlite_triggers if is_sqlite else postgres_triggers
    for trigger in triggers.statements():
        op.get_bind().exec_driver_sql(trigger)


def _set_aside() -> None:
    """Names of indexes and triggers are the database's, not their table's: they must go first."""
    for kind, name in op.get_bind().execute(text(_NAMED)).fetchall():
        op.execute(f"DROP {kind} {name}")
    for table in _GROWN:
        op.execute(f"ALTER TABLE {table} RENAME TO {table}_0001")


def _fill() -> None:
    for statement in (*_FILL, _ROLL_UP):
        op.execute(statement)
    for table in _GROWN:
        op.execute(f"DROP TABLE {table}_0001")
    op.execute("UPDATE directory_version SET version = version + 1")


_NAMED = """
SELECT type, name FROM sqlite_master WHERE type IN ('index', 'trigger') AND sql IS NOT NULL
"""
