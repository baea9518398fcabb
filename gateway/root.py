"""The root secret beside the store: keys are stored under it, so a new one would end them all.

A start without it makes one, which is right where nothing was made with another. Else it was lost,
or is another one in the environment: that must be told, and not be made up for in silence. So the
store has a check value: all gateways that share it must have the same root secret.
"""

from __future__ import annotations

from contextlib import closing

from gateway.clock import SYSTEM_CLOCK
from gateway.store.address import Database
from gateway.store.connection import has_table, open_for_writing, transaction
from gateway.store.current import is_current
from gateway.store.reader import read
from gateway.store.sql import Connection
from gateway.stores import database_of, is_there
from runtime import keyring
from runtime.config.place import Place
from runtime.keyring import Keyring

LATELY_US = 60_000_000  # killed ones may still have a lease there
CHECK_LABEL = "store-check"  # of the keyring; tells one root secret from another


class RootSecretLost(Exception):
    """API keys were made with a root secret that isn't there."""


def keyring_of(place: Place) -> Keyring:
    """As `keyring.load`, but nothing is made where it would end API keys. Raises RootSecretLost.

    Raises StoreUnavailable too.
    """
    refuse_if_lost(place)
    root, database = keyring.load(place.state_dir, place.root_secret), database_of(place)
    if is_there(database) and is_current(database):
        agree(database, root)
    return root


def refuse_if_lost(place: Place) -> None:
    """Raises RootSecretLost if a new root secret would be made though API keys need the old one.

    Raises StoreUnavailable too.
    """
    path = keyring.path(place.state_dir)
    if place.root_secret or path.exists() or not is_there(database := database_of(place)):
        return
    if count := read(database, _num_live_keys):
        raise RootSecretLost(
            f"{path} is gone, and the store has API keys that were made with it "
            f"({count}): they would stop working. Put it back, from a backup say, or set "
            "BULKHEAD_ROOT_SECRET. A new one is made once all of them are revoked"
        )


def agree(database: Database, root: Keyring) -> None:
    """Note which root secret a store's keys are made with, if it isn't. Raises RootSecretLost.

    Another takes its place where nothing depends on it: no key lives, and no other gateway.
    """
    digest = root.derive(CHECK_LABEL)
    if read(database, lambda db: db.execute(_NOTED).fetchone()) == (digest,):
        return
    with closing(open_for_writing(database)) as db, transaction(db):
        noted = db.execute(_NOTED).fetchone()
        if noted not in (None, (digest,)) and (depends := _what_depends(db)):
            raise RootSecretLost(
                f"the root secret isn't the one that this store ({database}) was used with, and "
                f"{depends}. All gateways of a store have the same: set BULKHEAD_ROOT_SECRET, or "
                "copy `root-secret` from the state folder of another one"
            )
        db.execute(_NOTE, {"digest": digest})


def _what_depends(db: Connection) -> str:
    """On the root secret that was used before; empty if nothing does."""
    if count := _num_live_keys(db):
        return f"its API keys ({count}) would not work"
    since = SYSTEM_CLOCK.now_us() - LATELY_US
    (gateways,) = db.execute(_GATEWAYS, {"since": since}).fetchone()
    return f"other gateways ({gateways}) use it" if gateways else ""


def _num_live_keys(db: Connection) -> int:
    """Without the demo tenant's, which is made again."""
    if not has_table(db, "api_key"):
        return 0
    count: int = db.execute(_LIVE_KEYS).fetchone()[0]
    return count


_NOTED = "SELECT digest FROM root_check"

_NOTE = """
INSERT INTO root_check (id, digest) VALUES (1, :digest)
ON CONFLICT (id) DO UPDATE SET digest = :digest
"""

_GATEWAYS = "SELECT count(*) FROM gateway_boot WHERE lease_until > :since"

_LIVE_KEYS = """
SELECT count(*) FROM api_key JOIN tenant ON tenant.id = api_key.tenant_id
WHERE api_key.revoked_at IS NULL AND tenant.is_demo = 0
"""
