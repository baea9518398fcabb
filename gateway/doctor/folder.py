"""Whether the configuration and the state folder are as they should be."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

from engines.build.sources import SOURCES, is_present
from gateway.admin.key import FILE as ADMIN_KEY
from gateway.clock import SYSTEM_CLOCK, Clock
from gateway.doctor.finding import Finding, Patient, error, ok, warning
from gateway.store.connection import DATABASE
from gateway.store.errors import StoreError
from gateway.store.migrate import needed
from gateway.store.reader import read
from gateway.store.sql import Connection
from gateway.stores import database_of, is_there
from runtime import weights
from runtime.config.vault import FILE as VAULT

PRIVATE = ("root-secret", "demo-key", ADMIN_KEY, VAULT, DATABASE)
OTHERS = 0o077
CLOCK_SLACK_US = 60_000_000


def config(patient: Patient) -> Iterator[Finding]:
    """Every fault and warning, as `bulkhead check` tells them."""
    source = patient.place.config_path or "the built-in configuration"
    for fault in patient.report.errors:
        yield error("config", f"{source}: {fault}", "correct it; nothing starts before")
    for fault in patient.report.warnings:
        yield warning("config", f"{source}: {fault}", "correct it, or leave the key out")
    if not patient.report.errors:
        yield ok("config", source)


def state_folder(patient: Patient) -> Iterator[Finding]:
    """There, ours, private and writable; the files in it too."""
    folder = patient.place.state_dir
    if not folder.exists():
        yield ok("state", f"{folder} is made at the first start")
        return
    found = folder.stat()
    if not stat.S_ISDIR(found.st_mode):
        yield error("state", f"{folder} is no folder", "name another with --state")
        return
    if found.st_uid != os.getuid():
        yield error("state", f"{folder} belongs to another user", "run as that user")
    elif not os.access(folder, os.W_OK | os.X_OK):
        yield error("state", f"{folder} can't be written", f"chmod 700 {folder}")
    elif found.st_mode & OTHERS:
        yield warning("state", f"{folder} can be read by others", f"chmod 700 {folder}")
    else:
        yield ok("state", str(folder))
    for name in PRIVATE:
        path = folder / name
        if path.exists() and path.stat().st_mode & OTHERS:
            yield error("state", f"{path} can be read by others", f"chmod 600 {path}")


def store(patient: Patient) -> Iterator[Finding]:
    """Its schema, and whether its pages hang together."""
    path, found = database_of(patient.place), None
    if not is_there(path):
        yield ok("store", "made at the first start")
        return
    try:
        steps = needed(path)
        found = read(path, _verdict_and_records) if not steps or isinstance(path, Path) else None
    except (StoreError, sqlite3.Error) as fault:
        todo = (
            "restore a backup, or run the version that made it"
            if isinstance(path, Path)
            else "see that its server runs, and takes the user and the password"
        )
        yield error("store", str(fault), todo)
        return
    verdict, records = found or ("ok", 0)
    if verdict != "ok":
        yield error("store", f"{path} is damaged: {verdict}", "stop, and restore a backup")
    elif steps:
        says = ", ".join(step.says for step in steps)
        yield warning("store", f"{path} is migrated at the next start: {says}", "have a backup")
    else:
        yield ok("store", f"{path}, {records} record{'s' * (records != 1)}")


def _verdict_and_records(db: Connection) -> tuple[str, int]:
    verdict = "ok"  # a server checks its pages by itself
    if isinstance(db, sqlite3.Connection):
        (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
    (records,) = db.execute("SELECT COUNT(*) FROM usage_record").fetchone()
    return verdict, records


def clock_and_store(patient: Patient, now: Clock = SYSTEM_CLOCK) -> Iterator[Finding]:
    """No record may be of the future: then the clock was wrong, or is."""
    path = database_of(patient.place)
    if not is_there(path):
        return
    try:
        newest = read(path, lambda db: db.execute(_NEWEST).fetchone()[0])
    except (StoreError, sqlite3.Error):
        return  # `store` tells
    if newest is not None and newest > now.now_us() + CLOCK_SLACK_US:
        yield error("clock", "the newest usage record is of the future", "set the clock")


_NEWEST = "SELECT MAX(charge_at) FROM usage_record"


def models_weights(patient: Patient) -> Iterator[Finding]:
    """What the embedded engine loads."""
    settings = patient.settings
    for model in settings.file.models if settings else ():
        if settings is None or model.engine != "embedded":
            continue
        place = weights.folder(settings, model)
        if model.source and not is_present(SOURCES[model.source], place):
            todo = "the next start fetches them"
            yield warning("weights", f"{model.id}: not in {place}", todo)
        elif not model.source and not (place / "config.json").is_file():
            todo = "correct the model's path, which holds a model in Hugging Face layout"
            yield error("weights", f"{model.id}: {place} holds no config.json", todo)
        else:
            yield ok("weights", f"{model.id}: {place}")


def secrets(patient: Patient) -> Iterator[Finding]:
    """Those that the configuration names are there; a missing one is a fault of the config."""
    if patient.settings and patient.settings.secrets:
        yield ok("secrets", ", ".join(sorted(patient.settings.secrets)))
