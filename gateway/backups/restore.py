"""A backup becomes what a state folder holds, also while a gateway runs on it.

1. the backup is unpacked and verified, and its store brought to this version's schema, aside
2. what would be lost is counted; who restores must accept it
3. all processes let go of the store (`store/hold.py`): requests wait meanwhile, and don't fail
4. what is there is copied to `backups/`
5. the store gets the backup's content, in one transaction

Root secret, vault and deployments are another matter: what runs would not take them up. So of the
other files only missing ones are put back, unless everything is asked for; then nothing may run.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gateway.backups import archive, backup
from gateway.backups.archive import BackupError, Manifest
from gateway.clock import SYSTEM_CLOCK
from gateway.store.backup import (
    BACKUPS,
    Lost,
    check,
    close_open_records,
    copy,
    facts,
    lost,
    put_back,
    schema_of,
    stamp,
)
from gateway.store.connection import DATABASE
from gateway.store.current import bring_up_to_date
from gateway.store.hold import held
from runtime import durable, keyring, state
from runtime.config.place import Place


class RestoreRefused(Exception):
    """A restore would do what wasn't asked for. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a restore would do."""

    manifest: Manifest
    lost: Lost
    puts_back: tuple[str, ...]  # files beside the store
    leaves: tuple[str, ...]  # files that differ from the backup's, and stay as they are


@dataclass(frozen=True, slots=True)
class Done:
    """What a restore has done."""

    lost: Lost  # as of the moment
    safety: Path | None  # a backup of what was there before; None: nothing was
    held_s: float  # how long the store was held; requests waited for running ones, and for this


@dataclass(frozen=True, slots=True)
class Restore:
    """A backup that is verified and ready to be put in place."""

    plan: Plan
    place: Place
    folder: Path  # where it lies unpacked
    everything: bool

    def carry_out(self, *, may_lose: bool, patience_s: float) -> Done:
        """Do it, once running answers have ended, which may take `patience_s`.

        Raises RestoreRefused if something would be lost that may not, StoreInUse, or StoreError.
        """
        database, then = self.place.state_dir / DATABASE, self.folder / DATABASE
        was_there, safety = database.exists(), None
        with held(database, patience_s):
            began = time.monotonic()
            if was_there:
                if not may_lose and lost(database, then):
                    raise RestoreRefused(LOSES)
                safety = _Safety(self.place)
            if safety and self.everything:
                safety.pack()  # before the other files go; nobody waits
            put_back(then, database)
            held_s = time.monotonic() - began
            self._put_files_back()
        if safety and not self.everything:
            safety.pack()
        return Done(
            lost=lost(safety.copy, then) if safety else Lost(),
            safety=safety.finish() if safety else None,
            held_s=held_s,
        )

    def _put_files_back(self) -> None:
        for name in self.plan.puts_back:
            path = self.place.state_dir / name
            path.parent.mkdir(mode=0o700, exist_ok=True)
            durable.replace(path, (self.folder / name).read_bytes())
        if self.everything:  # last: what goes wrong before it leaves no file missing
            for name in set(archive.files_of(self.place.state_dir)) - set(self.plan.puts_back):
                (self.place.state_dir / name).unlink()


LOSES = (
    "what was written since the backup would be lost: add --yes if it may be. It is kept in a "
    "backup of its own"
)


class _Safety:
    """What was there before: first a copy of the store, which is quick, then a whole backup."""

    def __init__(self, place: Place) -> None:
        folder = place.state_dir / BACKUPS
        folder.mkdir(mode=0o700, exist_ok=True)
        self._place = place
        self._archive = folder / f"before-restore-{stamp()}.tar.gz"
        self.copy = self._archive.with_suffix("").with_suffix(".db")
        copy(self._place.state_dir / DATABASE, self.copy)

    def pack(self) -> None:
        """Should this fail, the copy stays."""
        backup.create(self._place, self._archive, self.copy)

    def finish(self) -> Path:
        """The backup, without the copy that it was made of."""
        self.copy.unlink()
        return self._archive


@contextmanager
def prepared(place: Place, source: Path, *, everything: bool) -> Iterator[Restore]:
    """Unpack and verify a backup, and see what restoring it would do. Nothing is changed yet.

    Raises BackupError, RestoreRefused, StoreError, or StateInUse if `everything` is to be restored
    and something runs.
    """
    backup.refuse_a_server(place)
    with ExitStack() as stack:
        stack.enter_context(_folder(place.state_dir))
        if everything:
            stack.enter_context(state.own(place.state_dir, "node"))
            stack.enter_context(state.own(place.state_dir, "gateway"))
        stack.enter_context(backup.alone(place.state_dir))
        unpacked = tempfile.TemporaryDirectory(prefix=".restore-", dir=place.state_dir)
        folder = Path(stack.enter_context(unpacked))
        manifest = archive.unpack(source, folder)
        _refuse_another_root(place, manifest, everything=everything)
        _bring_up_to_date(folder, manifest)
        yield Restore(
            plan=_plan(place, folder, manifest, everything=everything),
            place=place,
            folder=folder,
            everything=everything,
        )


@contextmanager
def _folder(state_dir: Path) -> Iterator[None]:
    """The state folder; if it was made for this, it is gone again unless something came into it."""
    is_new = not state_dir.exists()
    state.prepare(state_dir)
    try:
        yield
    finally:
        if is_new and not (state_dir / DATABASE).exists():
            for lock in ("backup.lock", "gateway.lock", "node.lock"):
                (state_dir / lock).unlink(missing_ok=True)
            with suppress(OSError):  # another command put something there
                state_dir.rmdir()


def _bring_up_to_date(folder: Path, manifest: Manifest) -> None:
    """The store of the backup, as a start of this version would leave it. Raises BackupError."""
    database = folder / DATABASE
    check(database)
    if facts(database) != manifest.store:
        raise BackupError("the backup's store doesn't hold what its manifest says")
    bring_up_to_date(database)
    fresh = folder / "fresh.db"
    bring_up_to_date(fresh)
    if schema_of(database) != schema_of(fresh):
        raise BackupError("the backup's store has other tables or triggers than one of Bulkhead's")
    for file in folder.glob("fresh.db*"):
        file.unlink()
    close_open_records(database, SYSTEM_CLOCK.now_us())


def _refuse_another_root(place: Place, manifest: Manifest, *, everything: bool) -> None:
    """Keys are valid under the root secret that they were made with, and no other."""
    if backup.root_of(place) in (None, manifest.root):
        return
    why = "the backup was made with another root secret, so that its API keys would not work"
    if place.root_secret:
        raise RestoreRefused(f"{why}: set BULKHEAD_ROOT_SECRET to that one")
    if not everything:
        raise RestoreRefused(
            f"{why} under that of {place.state_dir}. Stop what runs, and add --all: it brings back "
            "the root secret, and the vault and deployments with it"
        )
    if not any(part.name == keyring.path(Path()).name for part in manifest.parts):
        raise RestoreRefused(f"{why}, and doesn't hold it: set BULKHEAD_ROOT_SECRET to that one")


def _plan(place: Place, folder: Path, manifest: Manifest, *, everything: bool) -> Plan:
    database = place.state_dir / DATABASE
    if database.exists():
        bring_up_to_date(database)  # as any start of this version would
    names = archive.files_of(folder)
    missing = tuple(name for name in names if not _is_there(place, name))
    differing = tuple(
        name
        for name in names
        if name not in missing and not _is_same(place.state_dir / name, folder / name)
    )
    return Plan(
        manifest=manifest,
        lost=lost(database, folder / DATABASE) if database.exists() else Lost(),
        puts_back=tuple(names) if everything else missing,
        leaves=() if everything else differing,
    )


def _is_there(place: Place, name: str) -> bool:
    """Whether the folder has its own. Deployments belong together: one of ours is all of them."""
    if name == keyring.path(Path()).name and place.root_secret:
        return True
    name = "deployments/current" if name.startswith("deployments/") else name
    return (place.state_dir / name).exists()


def _is_same(one: Path, other: Path) -> bool:
    return one.exists() and one.read_bytes() == other.read_bytes()
