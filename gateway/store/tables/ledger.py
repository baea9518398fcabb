"""What was used and what it costs: records, closed for good by triggers.

A correction is a record too: entered open and closed in one transaction.
"""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, ForeignKey, Index, Integer, Table, text

from gateway.store.tables.base import Big, Text, metadata

IS_OPEN = text("state = 'open'")
HAS_SEQ = text("seq IS NOT NULL")
CORRECTS = text("corrects IS NOT NULL")

usage_record = Table(
    "usage_record",
    metadata,
    Column("id", Text, primary_key=True),
    Column("request_id", Text, nullable=False, unique=True),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False),
    Column("api_key_id", Text, ForeignKey("api_key.id")),
    Column("project_id", Text, ForeignKey("project.id")),
    Column("subject", Text),  # who called by a token instead of a key: issuer|sub
    Column("kind", Text, nullable=False, server_default="request"),
    Column("corrects", Text, ForeignKey("usage_record.id")),
    Column("reason", Text),  # of a correction
    Column("operation", Text, nullable=False),
    Column("model_id", Text, nullable=False),
    Column("model_revision", Text, nullable=False),
    Column("streamed", Integer, nullable=False),
    Column("boot_id", Text, nullable=False),
    Column("config_hash", Text),  # of the deployment that was in force
    Column("currency", Text, nullable=False),
    Column("input_price_pico", Big, nullable=False),  # per token, fixed at admission
    Column("cached_input_price_pico", Big, nullable=False),
    Column("output_price_pico", Big, nullable=False),
    Column("price_version_id", Text),
    Column("list_input_price_pico", Big),  # NULL: the list is in another currency
    Column("list_cached_input_price_pico", Big),
    Column("list_output_price_pico", Big),
    Column("list_price_version_id", Text),
    Column("opened_at", Big, nullable=False),
    Column("charge_at", Big, nullable=False),  # sets the period it's billed in
    Column("state", Text, nullable=False),
    Column("seq", Big),  # the order of closing, without gaps; NULL while open
    Column("host_id", Text),
    Column("attempts", Integer, nullable=False, server_default="1"),
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
    Column("list_amount_pico", Big),
    Column("claimed_input_tokens", Big),  # by the engine, where that was more than could be
    Column("claimed_output_tokens", Big),
    CheckConstraint("operation IN ('chat', 'completion')", name="operation"),
    CheckConstraint("state IN ('open', 'settled', 'orphaned')", name="state"),
    CheckConstraint("kind IN ('request', 'correction')", name="kind"),
    CheckConstraint("(kind = 'correction') = (corrects IS NOT NULL)", name="corrects"),
    CheckConstraint(
        "kind = 'correction' OR (api_key_id IS NULL) <> (subject IS NULL)", name="one_caller"
    ),
    CheckConstraint("kind = 'correction' OR amount_pico >= 0", name="only_corrections_give_back"),
    CheckConstraint("billable IN (0, 1)", name="billable"),
    CheckConstraint("billable = 1 OR amount_pico = 0", name="unbilled_is_free"),
    CheckConstraint(
        "(state = 'open') = (outcome IS NULL) AND (state = 'open') = (billable IS NULL)"
        " AND (state = 'open') = (settled_at IS NULL) AND (state = 'open') = (usage_source IS NULL)"
        " AND (state = 'open') = (amount_pico IS NULL) AND (state = 'open') = (seq IS NULL)",
        name="closed_is_complete",
    ),
    Index(None, "tenant_id", "charge_at", "id"),
    Index(None, "charge_at", "id"),
    # Partial, so that a request, which has neither when it is opened, needn't write to them.
    Index(
        "uq_usage_record_seq", "seq", unique=True, sqlite_where=HAS_SEQ, postgresql_where=HAS_SEQ
    ),
    Index("ix_usage_record_corrects", "corrects", sqlite_where=CORRECTS, postgresql_where=CORRECTS),
    Index("ix_usage_record_open", "boot_id", sqlite_where=IS_OPEN, postgresql_where=IS_OPEN),
    sqlite_strict=True,
)

# What it is billed by class of tokens, `usage_line`, is a view of it: see migration 0004.

# Sums by hour, of settled billable records and of corrections; written with each of them.
usage_rollup = Table(
    "usage_rollup",
    metadata,
    Column("tenant_id", Text, ForeignKey("tenant.id"), primary_key=True),
    Column("hour_at", Big, primary_key=True, autoincrement=False),  # by `charge_at`
    Column("model_id", Text, primary_key=True),
    Column("api_key_id", Text, primary_key=True),  # '': none, as for the project
    Column("project_id", Text, primary_key=True),
    Column("currency", Text, primary_key=True),
    Column("requests", Big, nullable=False),
    Column("input_tokens", Big, nullable=False),
    Column("cached_input_tokens", Big, nullable=False),  # part of the input tokens
    Column("output_tokens", Big, nullable=False),
    Column("amount_pico", Big, nullable=False),
    Column("list_amount_pico", Big, nullable=False),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

# One row: the `seq` that was given last.
ledger_counter = Table(
    "ledger_counter",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("seq", Big, nullable=False),
    CheckConstraint("id = 1", name="one_row"),
    sqlite_strict=True,
)
