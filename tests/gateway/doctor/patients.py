"""Installations for the doctor's tests, and what is found of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gateway.doctor.finding import Finding, Patient
from gateway.store.connection import DATABASE
from gateway.store.migrate import migrate
from runtime.config.models import ModelSettings
from runtime.config.sections import FileSettings
from runtime.settings import Settings


def patient(folder: Path, **file: Any) -> Patient:
    """An installation in `folder`, with a store."""
    file = {"models": (ModelSettings(id="echo", engine="fake"),)} | file
    state_dir = folder / "state"
    if not state_dir.exists():
        state_dir.mkdir(mode=0o700)
        migrate(state_dir / DATABASE)
    settings = Settings(file=FileSettings(**file), config_path="", state_dir=state_dir)
    return Patient(settings, settings)


def levels(findings: Iterable[Finding]) -> list[str]:
    return [finding.level for finding in findings]


def one(findings: Iterable[Finding], level: str) -> Finding:
    """The only finding, which is of this level and says what to do if it isn't fine."""
    (found,) = findings
    assert found.level == level, found
    assert bool(found.todo) == (level != "ok")
    return found
