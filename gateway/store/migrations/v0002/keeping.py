"""How the books are kept: periods, seals, who changed what, which processes live."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, ForeignKey, Integer, LargeBinary, Table

from gateway.store.migrations.v0002.base import Big, Text, metadata

billing_period = Table(
    "billing_period",
    metadata,
    Column("starts_at", Big, primary_key=True, autoincrement=False),  # a month, UTC
    Column("ends_at", Big, nullable=False),
    Column("status", Text, nullable=False),
    Column("closed_at", Big),
    Column("seq_bound", Big),
    Column("created_at", Big, nullable=False),
    Column("updated_at", Big, nullable=False),
    CheckConstraint("status IN ('open', 'closed')", name="status"),
    CheckConstraint("(status = 'closed') = (closed_at IS NOT NULL)", name="closed_at"),
    sqlite_strict=True,
)

# Each tenant's chain of hashes over its closed records; triggers keep them as they are.
seal = Table(
    "seal",
    metadata,
    Column("tenant_id", Text, ForeignKey("tenant.id"), primary_key=True),
    Column("chain_seq", Big, primary_key=True, autoincrement=False),
    Column("record_id", Text, ForeignKey("usage_record.id"), nullable=False, unique=True),
    Column("hash", LargeBinary, nullable=False),
    sqlite_strict=True,
)

checkpoint = Table(
    "checkpoint",
    metadata,
    Column("id", Text, primary_key=True),
    Column("at", Big, nullable=False),
    Column("body", Text, nullable=False),  # JSON
    Column("signature", LargeBinary, nullable=False),
    sqlite_strict=True,
)

# Triggers keep it as it is.
audit_log = Table(
    "audit_log",
    metadata,
    Column("id", Text, primary_key=True),
    Column("at", Big, nullable=False, index=True),
    Column("actor_kind", Text, nullable=False),
    Column("actor_id", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("target_kind", Text, nullable=False),
    Column("target_id", Text, nullable=False),
    Column("tenant_id", Text, index=True),
    Column("request_id", Text),
    Column("detail", Text, nullable=False),  # JSON
    CheckConstraint("actor_kind IN ('admin', 'key', 'cli', 'system')", name="actor_kind"),
    sqlite_strict=True,
)

# Answers to calls that named themselves, so that a second one changes nothing.
idempotency = Table(
    "idempotency",
    metadata,
    Column("actor", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("fingerprint", Text, nullable=False),
    Column("created_at", Big, nullable=False, index=True),
    Column("status_code", Integer),  # NULL: it still runs
    Column("response", LargeBinary),
    sqlite_strict=True,
)

# Replicas tell here that they live. On SQLite, locks on files do.
gateway_boot = Table(
    "gateway_boot",
    metadata,
    Column("boot_id", Text, primary_key=True),
    Column("host", Text, nullable=False),
    Column("started_at", Big, nullable=False),
    Column("lease_until", Big, nullable=False),
    sqlite_strict=True,
)

# One row: by which replicas know whether their root secret is that of the store's keys.
root_check = Table(
    "root_check",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("digest", LargeBinary, nullable=False),
    CheckConstraint("id = 1", name="one_row"),
    sqlite_strict=True,
)
