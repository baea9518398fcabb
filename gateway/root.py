"""The root secret beside the store: keys are stored under it, so a new one would end them all.

A start without it makes one, which is right where nothing was made with another. Else it was lost,
or is another one in the environment: that must be told, and not be made up for in silence.
"""

from __future__ import annotations

from pathlib import Path

from gateway.store.connection import DATABASE
from gateway.store.reader import read
from gateway.store.sql import Connection
from runtime import keyring
from runtime.keyring import Keyring


class RootSecretLost(Exception):
    """API keys were made with a root secret that isn't there."""


def keyring_of(state_dir: Path, root_secret: str) -> Keyring:
    """As `keyring.load`, but nothing is made where it would end API keys. Raises RootSecretLost."""
    refuse_if_lost(state_dir, root_secret)
    return keyring.load(state_dir, root_secret)


def refuse_if_lost(state_dir: Path, root_secret: str) -> None:
    """Raises RootSecretLost if a new root secret would be made though API keys need the old one.

    `root_secret` is the environment's. Raises StoreUnavailable too.
    """
    database = state_dir / DATABASE
    if root_secret or keyring.path(state_dir).exists() or not database.exists():
        return
    if count := read(database, _num_live_keys):
        raise RootSecretLost(
            f"{keyring.path(state_dir)} is gone, and the store has API keys that were made with it "
            f"({count}): they would stop working. Put it back, from a backup say, or set "
            "BULKHEAD_ROOT_SECRET. A new one is made once all of them are revoked"
        )


def _num_live_keys(db: Connection) -> int:
    """Without the demo tenant's, which is made again."""
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'api_key'").fetchone() is None:
        return 0
    count: int = db.execute(_LIVE_KEYS).fetchone()[0]
    return count


_LIVE_KEYS = """
SELECT count(*) FROM api_key JOIN tenant ON tenant.id = api_key.tenant_id
WHERE api_key.revoked_at IS NULL AND tenant.is_demo = 0
"""
