"""Who may call, and how much: tenants, projects, keys, limits.

Every change of these counts `directory_version` up (by triggers), but for `api_key_use`.
"""

from __future__ import annotations

from sqlalchemy import (
    CheckConstraint,
    Column,
    ForeignKey,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    UniqueConstraint,
)

from gateway.store.tables.base import Big, Text, metadata

tenant = Table(
    "tenant",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("is_demo", Integer, nullable=False),
    Column("created_at", Big, nullable=False),
    Column("timezone", Text, nullable=False, server_default="UTC"),  # IANA: of budgets alone
    Column("weight", Integer, nullable=False, server_default="1"),  # its share when tenants queue
    Column("disabled_at", Big),  # its keys are refused since then
    CheckConstraint("is_demo IN (0, 1)", name="is_demo"),
    CheckConstraint("weight > 0", name="weight"),
    sqlite_strict=True,
)

project = Table(
    "project",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("created_at", Big, nullable=False),
    Column("archived_at", Big),
    UniqueConstraint("tenant_id", "name"),
    sqlite_strict=True,
)

api_key = Table(
    "api_key",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenant.id"), nullable=False, index=True),
    Column("digest", LargeBinary, nullable=False, unique=True),  # of the newest secret
    Column("hint", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("created_at", Big, nullable=False),
    Column("revoked_at", Big),
    Column("project_id", Text, ForeignKey("project.id")),
    Column(  # sorted, with spaces between
        "scopes", Text, nullable=False, server_default="inference models:read usage:read"
    ),
    Column("models", Text),  # a JSON array of model ids; NULL: all
    Column("networks", Text),  # a JSON array of CIDRs; NULL: from anywhere
    Column("expires_at", Big),
    Column("rotated_at", Big),
    sqlite_strict=True,
)

# A secret that was rotated away and still works until then.
api_key_past_secret = Table(
    "api_key_past_secret",
    metadata,
    Column("digest", LargeBinary, primary_key=True),
    Column("key_id", Text, ForeignKey("api_key.id"), nullable=False, index=True),
    Column("hint", Text, nullable=False),
    Column("valid_until", Big, nullable=False),
    sqlite_strict=True,
)

# Written at most once a minute a key; no change of the directory.
api_key_use = Table(
    "api_key_use",
    metadata,
    Column("key_id", Text, ForeignKey("api_key.id"), primary_key=True),
    Column("last_used_at", Big, nullable=False),
    Column("last_used_from", Text),
    sqlite_strict=True,
)

limit_rule = Table(
    "limit_rule",
    metadata,
    Column("scope_kind", Text, nullable=False),
    Column("scope_id", Text, nullable=False),
    Column("model_id", Text, nullable=False, server_default=""),  # '': all models together
    Column("rpm", Big),
    Column("tpm", Big),
    Column("concurrent", Big),
    Column("updated_at", Big, nullable=False),
    PrimaryKeyConstraint("scope_kind", "scope_id", "model_id"),
    CheckConstraint("scope_kind IN ('tenant', 'project', 'key')", name="scope_kind"),
    sqlite_strict=True,
)

# One row. Triggers count it up.
directory_version = Table(
    "directory_version",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("version", Big, nullable=False),
    CheckConstraint("id = 1", name="one_row"),
    sqlite_strict=True,
)
