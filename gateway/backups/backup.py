"""Backups are made beside a running gateway, and verified before they count."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.backups import archive
from gateway.backups.archive import BackupError, Manifest
from gateway.store.address import Postgres
from gateway.store.backup import check, copy
from gateway.store.connection import DATABASE
from gateway.stores import database_of
from runtime import durable, keyring
from runtime.config.place import Place


def create(place: Place, target: Path, database: Path | None = None) -> Manifest:
    """Write a verified backup to `target`, in place of what is there. Runs beside a gateway.

    `database` is a copy of the store to be used instead of the present one. Raises BackupError,
    StoreError or BadRootSecret; `target` is as it was then.
    """
    refuse_a_server(place)
    if database is None and not (place.state_dir / DATABASE).exists():
        raise BackupError(f"{place.state_dir} holds no database; name the folder with --state")
    with tempfile.TemporaryDirectory(prefix=".backup-", dir=place.state_dir) as folder:
        if database is None:
            database = Path(folder) / DATABASE
            copy(place.state_dir / DATABASE, database)
        check(database)
        draft = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with durable.naming(target), open(handle, "wb") as out:
                manifest = archive.pack(place.state_dir, database, root_of(place) or "", out)
                out.flush()
                os.fsync(out.fileno())
            archive.verify(draft)
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
    durable.sync(target.parent)
    return manifest


def refuse_a_server(place: Place) -> None:
    """Raises BackupError if the store is a server's, which has its own ways."""
    if isinstance(server := database_of(place), Postgres):
        raise BackupError(
            f"the store is PostgreSQL's ({server}), and a backup of it is pg_dump's: "
            f"pg_dump --format=custom --file=bulkhead.dump '{server}'; back, into an empty "
            "database and with no gateway running: pg_restore --exit-on-error --dbname=… "
            "bulkhead.dump. Keep the root secret beside it: API keys are valid under that alone"
        )


def root_of(place: Place) -> str | None:
    """What tells this folder's root secret from another; None while it has none."""
    if not place.root_secret and not keyring.path(place.state_dir).exists():
        return None
    return keyring.load(place.state_dir, place.root_secret).derive("backup").hex()


@contextmanager
def alone(state_dir: Path, *, wait: bool = True) -> Iterator[None]:
    """One backup or restore of a state folder at a time.

    Another is waited for, which nothing can interrupt; or without `wait` it raises BlockingIOError.
    """
    with (state_dir / "backup.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        for pattern in (".backup-*", ".restore-*"):
            for left_by_a_killed_one in state_dir.glob(pattern):
                shutil.rmtree(left_by_a_killed_one, ignore_errors=True)
        yield
