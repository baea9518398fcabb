"""The demo tenant of `bulkhead dev`: made once, its key kept in the state folder (0600).

`serve` refuses this key: its directory leaves demo tenants out.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from gateway.identity import keys
from gateway.identity.api_keys import create_key
from gateway.identity.tenants import TenantExists, create_tenant
from gateway.store.connection import transaction
from gateway.store.sql import Connection
from runtime.keyring import write_once

NAME = "demo"


def demo_key(db: Connection, state_dir: Path, pepper: bytes) -> str:
    """The demo tenant's key: the same on every start, made again if its row or its file is gone."""
    path = state_dir / "demo-key"
    if path.exists():
        secret = path.read_text("ascii", "replace").strip()
        if _is_live(db, keys.digest(pepper, secret)):
            return secret
        path.unlink()
    with transaction(db):
        with suppress(TenantExists):
            create_tenant(db, NAME, is_demo=True)
        _, secret = create_key(db, NAME, "demo", pepper)
    return write_once(path, secret)


def _is_live(db: Connection, digest: bytes) -> bool:
    query = "SELECT 1 FROM api_key WHERE digest = :digest AND revoked_at IS NULL"
    return db.execute(query, {"digest": digest}).fetchone() is not None
