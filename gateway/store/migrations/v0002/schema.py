"""All of migration 0002's tables."""

from __future__ import annotations

from gateway.store.migrations.v0002 import directory, keeping, ledger, money
from gateway.store.migrations.v0002.base import metadata

__all__ = ["directory", "keeping", "ledger", "metadata", "money"]
