"""Tenants, keys, usage records and their lines, and the triggers that guard them.

There is no way down: a ledger isn't taken apart. Go back by restoring a backup. SQLite's alone:
PostgreSQL's tables begin with 0002.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

_DIRECTORY_TRIGGER = """
CREATE TRIGGER {table}_counts_{event} AFTER {event} ON {table}
BEGIN
  UPDATE directory_version SET version = version + 1;
END
"""

_LEDGER_TRIGGERS = (
    """
CREATE TRIGGER usage_record_starts_open BEFORE INSERT ON usage_record
WHEN NEW.state <> 'open' BEGIN
  SELECT RAISE(ABORT, 'a usage record starts open');
END
""",
    """
CREATE TRIGGER usage_record_stays_closed BEFORE UPDATE ON usage_record
WHEN OLD.state <> 'open' BEGIN
  SELECT RAISE(ABORT, 'a closed usage record does not change');
END
""",
    """
CREATE TRIGGER usage_record_stays BEFORE DELETE ON usage_record BEGIN
  SELECT RAISE(ABORT, 'a usage record is not deleted');
END
""",
    """
CREATE TRIGGER usage_record_adds_up BEFORE UPDATE ON usage_record
WHEN OLD.state = 'open' AND NEW.state <> 'open' AND NEW.amount_pico <>
  (SELECT coalesce(sum(amount_pico), 0) FROM usage_line WHERE record_id = NEW.id)
BEGIN
  SELECT RAISE(ABORT, 'the amount of a usage record is the sum of its lines');
END
""",
    """
CREATE TRIGGER usage_line_needs_open BEFORE INSERT ON usage_line
WHEN (SELECT state FROM usage_record WHERE id = NEW.record_id) <> 'open' BEGIN
  SELECT RAISE(ABORT, 'a closed usage record takes no more lines');
END
""",
    """
CREATE TRIGGER usage_line_does_not_change BEFORE UPDATE ON usage_line BEGIN
  SELECT RAISE(ABORT, 'a usage line does not change');
END
""",
    """
CREATE TRIGGER usage_line_stays BEFORE DELETE ON usage_line BEGIN
  SELECT RAISE(ABORT, 'a usage line is not deleted');
END
""",
)


def upgrade() -> None:
    if op.get_bind().dialect.name != "sqlite":
        return
    _create_directory()
    _create_usage_record()
    _create_usage_line()
    for trigger in _LEDGER_TRIGGERS:
        op.execute(trigger)


def _create_directory() -> None:
    op.create_table(
        "tenant",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        sa.Column("is_demo", sa.Integer, nullable=False),
        sa.Column("created_at", _BIG, nullable=False),
        sa.CheckConstraint("is_demo IN (0, 1)", name="is_demo"),
        sqlite_strict=True,
    )
    op.create_table(
        "api_key",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenant.id"), nullable=False, index=True),
        sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("hint", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("created_at", _BIG, nullable=False),
        sa.Column("revoked_at", _BIG),
        sqlite_strict=True,
    )
    op.create_table(
        "directory_version",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("version", _BIG, nullable=False),
        sa.CheckConstraint("id = 1", name="one_row"),
        sqlite_strict=True,
    )
    op.execute("INSERT INTO directory_version (id, version) VALUES (1, 0)")
    for table in ("tenant", "api_key"):
        for event in ("INSERT", "UPDATE", "DELETE"):
            op.execute(_DIRECTORY_TRIGGER.format(table=table, event=event))


def _create_usage_record() -> None:
    op.create_table(
        "usage_record",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("request_id", sa.Text, nullable=False, unique=True),
        sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenant.id"), nullable=False),
        sa.Column("api_key_id", sa.Text, sa.ForeignKey("api_key.id"), nullable=False),
        sa.Column("operation", sa.Text, nullable=False),
        sa.Column("model_id", sa.Text, nullable=False),
        sa.Column("model_revision", sa.Text, nullable=False),
        sa.Column("streamed", sa.Integer, nullable=False),
        sa.Column("boot_id", sa.Text, nullable=False),
        sa.Column("currency", sa.Text, nullable=False),
        sa.Column("input_price_pico", _BIG, nullable=False),
        sa.Column("cached_input_price_pico", _BIG, nullable=False),
        sa.Column("output_price_pico", _BIG, nullable=False),
        sa.Column("opened_at", _BIG, nullable=False),
        sa.Column("charge_at", _BIG, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("host_id", sa.Text),
        sa.Column("outcome", sa.Text),
        sa.Column("billable", sa.Integer),
        sa.Column("bill_reason", sa.Text),
        sa.Column("first_token_at", _BIG),
        sa.Column("ended_at", _BIG),
        sa.Column("settled_at", _BIG),
        sa.Column("input_tokens", _BIG),
        sa.Column("cached_input_tokens", _BIG),
        sa.Column("output_tokens", _BIG),
        sa.Column("usage_source", sa.Text),
        sa.Column("status_code", sa.Integer),
        sa.Column("finish_reason", sa.Text),
        sa.Column("amount_pico", _BIG),
        sa.CheckConstraint("operation IN ('chat', 'completion')", name="operation"),
        sa.CheckConstraint("state IN ('open', 'settled', 'orphaned')", name="state"),
        sa.CheckConstraint("billable IN (0, 1)", name="billable"),
        sa.CheckConstraint("billable = 1 OR amount_pico = 0", name="unbilled_is_free"),
        sa.CheckConstraint(
            "(state = 'open') = (outcome IS NULL) AND (state = 'open') = (billable IS NULL)"
            " AND (state = 'open') = (settled_at IS NULL)"
            " AND (state = 'open') = (usage_source IS NULL)"
            " AND (state = 'open') = (amount_pico IS NULL)",
            name="closed_is_complete",
        ),
        sqlite_strict=True,
    )
    op.create_index(None, "usage_record", ["tenant_id", "charge_at", "id"])
    op.create_index(None, "usage_record", ["charge_at", "id"])
    op.create_index(
        "ix_usage_record_open", "usage_record", ["boot_id"], sqlite_where=sa.text("state = 'open'")
    )


def _create_usage_line() -> None:
    op.create_table(
        "usage_line",
        sa.Column("record_id", sa.Text, sa.ForeignKey("usage_record.id"), primary_key=True),
        sa.Column("line_no", sa.Integer, primary_key=True),
        sa.Column("sku_id", sa.Text, nullable=False),
        sa.Column("token_class", sa.Text, nullable=False),
        sa.Column("quantity", _BIG, nullable=False),
        sa.Column("price_pico", _BIG, nullable=False),
        sa.Column("amount_pico", _BIG, nullable=False),
        sa.CheckConstraint(
            "token_class IN ('input', 'cached_input', 'output')", name="token_class"
        ),
        sa.CheckConstraint("quantity > 0 AND amount_pico = quantity * price_pico", name="amount"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
