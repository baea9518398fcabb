"""What tokens cost and when, and what may be spent. Budgets count in nano-units (1e-9)."""

from __future__ import annotations

from sqlalchemy import (
    CheckConstraint,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    Table,
    text,
)

from gateway.store.tables.base import Big, Text, metadata

# Triggers keep them as they are: a new price is a new version.
price_version = Table(
    "price_version",
    metadata,
    Column("id", Text, primary_key=True),
    Column("model_id", Text, nullable=False),
    Column("tenant_id", Text, ForeignKey("tenant.id")),  # NULL: the list
    Column("currency", Text, nullable=False),
    Column("input_pico", Big, nullable=False),  # per token
    Column("cached_input_pico", Big, nullable=False),
    Column("output_pico", Big, nullable=False),
    Column("effective_from", Big, nullable=False),
    Column("created_at", Big, nullable=False),
    Column("reason", Text, nullable=False),
    Index(
        "uq_price_version_effective_from",
        "model_id",
        text("coalesce(tenant_id, '')"),
        "effective_from",
        "created_at",  # of two that begin at one moment, the one that was made later counts
        unique=True,
    ),
    sqlite_strict=True,
)

budget = Table(
    "budget",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False, index=True),
    Column("scope_kind", Text, nullable=False),
    Column("scope_id", Text, nullable=False),
    Column("model_id", Text, nullable=False, server_default=""),  # '': all models together
    Column("period", Text, nullable=False),
    Column("currency", Text, nullable=False),
    Column("limit_nano", Big, nullable=False),
    Column("alerts", Text, nullable=False),  # a JSON array of percents
    Column("created_at", Big, nullable=False),
    Column("archived_at", Big),
    CheckConstraint("scope_kind IN ('tenant', 'project', 'key')", name="scope_kind"),
    CheckConstraint("period IN ('daily', 'monthly', 'total')", name="period"),
    CheckConstraint("limit_nano >= 0", name="limit_nano"),
    sqlite_strict=True,
)

budget_window = Table(
    "budget_window",
    metadata,
    Column("budget_id", Text, ForeignKey("budget.id"), primary_key=True),
    Column("starts_at", Big, primary_key=True, autoincrement=False),
    Column("ends_at", Big),  # NULL: never
    Column("spent_nano", Big, nullable=False),
    Column("held_nano", Big, nullable=False),
    CheckConstraint("spent_nano >= 0", name="spent_nano"),
    CheckConstraint("held_nano >= 0", name="held_nano"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

# What an open record may still cost; gone once it is closed.
budget_hold = Table(
    "budget_hold",
    metadata,
    Column("record_id", Text, ForeignKey("usage_record.id"), primary_key=True),
    Column("budget_id", Text, primary_key=True),
    Column("starts_at", Big, nullable=False),
    Column("nano", Big, nullable=False),
    ForeignKeyConstraint(
        ["budget_id", "starts_at"], ["budget_window.budget_id", "budget_window.starts_at"]
    ),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

budget_alert = Table(
    "budget_alert",
    metadata,
    Column("budget_id", Text, primary_key=True),
    Column("starts_at", Big, primary_key=True, autoincrement=False),
    Column("percent", Integer, primary_key=True, autoincrement=False),
    Column("raised_at", Big, nullable=False),
    Column("sent_at", Big),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("next_try_at", Big, nullable=False),
    ForeignKeyConstraint(
        ["budget_id", "starts_at"], ["budget_window.budget_id", "budget_window.starts_at"]
    ),
    sqlite_strict=True,
)
