"""The tables, defined once. Migrations bring a database here; a test holds the two together.

Times are microseconds UTC, money is in pico-units of the record's currency. The triggers that count
directory versions and keep closed records as they are live in the migrations.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Big = BigInteger().with_variant(Integer(), "sqlite")  # 64 bits on every database

tenant = Table(
    "tenant",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("is_demo", Integer, nullable=False),
    Column("created_at", Big, nullable=False),
    CheckConstraint("is_demo IN (0, 1)", name="is_demo"),
    sqlite_strict=True,
)

api_key = Table(
    "api_key",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False, index=True),
    Column("digest", LargeBinary, nullable=False, unique=True),
    Column("hint", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("created_at", Big, nullable=False),
    Column("revoked_at", Big),
    sqlite_strict=True,
)

# One row. Triggers count it up with every change of a tenant or a key.
directory_version = Table(
    "directory_version",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("version", Big, nullable=False),
    CheckConstraint("id = 1", name="one_row"),
    sqlite_strict=True,
)

usage_record = Table(
    "usage_record",
    metadata,
    Column("id", Text, primary_key=True),
    Column("request_id", Text, nullable=False, unique=True),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False),
    Column("api_key_id", Text, ForeignKey("api_key.id"), nullable=False),
    Column("operation", Text, nullable=False),
    Column("model_id", Text, nullable=False),
    Column("model_revision", Text, nullable=False),
    Column("streamed", Integer, nullable=False),
    Column("boot_id", Text, nullable=False),
    Column("currency", Text, nullable=False),
    Column("input_price_pico", Big, nullable=False),  # per token, fixed at admission
    Column("cached_input_price_pico", Big, nullable=False),
    Column("output_price_pico", Big, nullable=False),
    Column("opened_at", Big, nullable=False),
    Column("charge_at", Big, nullable=False),  # sets the period it's billed in
    Column("state", Text, nullable=False),
    Column("host_id", Text),
    Column("outcome", Text),
    Column("billable", Integer),
    Column("bill_reason", Text),
    Column("first_token_at", Big),
    Column("ended_at", Big),
    Column("settled_at", Big),
    Column("input_tokens", Big),  # NULL: not known, which isn't zero
    Column("cached_input_tokens", Big),  # part of the input tokens
    Column("output_tokens", Big),
    Column("usage_source", Text),
    Column("status_code", Integer),
    Column("finish_reason", Text),
    Column("amount_pico", Big),
    CheckConstraint("operation IN ('chat', 'completion')", name="operation"),
    CheckConstraint("state IN ('open', 'settled', 'orphaned')", name="state"),
    CheckConstraint("billable IN (0, 1)", name="billable"),
    CheckConstraint("billable = 1 OR amount_pico = 0", name="unbilled_is_free"),
    CheckConstraint(
        "(state = 'open') = (outcome IS NULL) AND (state = 'open') = (billable IS NULL)"
        " AND (state = 'open') = (settled_at IS NULL) AND (state = 'open') = (usage_source IS NULL)"
        " AND (state = 'open') = (amount_pico IS NULL)",
        name="closed_is_complete",
    ),
    Index(None, "tenant_id", "charge_at", "id"),
    Index(None, "charge_at", "id"),
    Index("ix_usage_record_open", "boot_id", sqlite_where=text("state = 'open'")),
    sqlite_strict=True,
)

usage_line = Table(
    "usage_line",
    metadata,
    Column("record_id", Text, ForeignKey("usage_record.id"), primary_key=True),
    Column("line_no", Integer, primary_key=True),
    Column("sku_id", Text, nullable=False),
    Column("token_class", Text, nullable=False),  # disjoint: input is what wasn't cached
    Column("quantity", Big, nullable=False),
    Column("price_pico", Big, nullable=False),
    Column("amount_pico", Big, nullable=False),
    CheckConstraint("token_class IN ('input', 'cached_input', 'output')", name="token_class"),
    CheckConstraint("quantity > 0 AND amount_pico = quantity * price_pico", name="amount"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
