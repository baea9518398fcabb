"""What can be known before a start by looking outside the file: certificates, cards, memory.

Asked when a file is about to be used, and never of what is deployed already: a certificate that has
expired since must not keep a process from starting again. A check gets the values that were good,
with None for the others, and tells (path, message).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runtime import certificates
from runtime.cards import card_of
from runtime.footprint import memory_faults
from runtime.models import ClientTls, ModelSettings
from runtime.report import Report
from runtime.sections import HostSettings, ServerTls


def check(found: dict[str, Any], folder: Path, report: Report) -> None:
    """Add to `report` what is wrong. Relative paths start at `folder`."""
    for path, tls in _tables(found):
        certificate = certificates.read(tls, folder)
        for key, message in certificate.errors:
            report.error(f"{path}.{key}", message)
        for key, message in certificate.warnings:
            report.warn(f"{path}.{key}", message)
    models: tuple[ModelSettings | None, ...] = found.get("models") or ()
    for i, model in enumerate(models):
        if model is not None:
            card_of(model.card, model.source, folder, report, f"models[{i}].card")
    hosts = found.get("hosts") or HostSettings()
    for path, message in memory_faults(models, hosts.memory_bytes):
        report.error(path, message)


def _tables(found: dict[str, Any]) -> Iterator[tuple[str, ServerTls | ClientTls]]:
    """Every `tls` table that names files, with its path."""
    places = [(name, found.get(name)) for name in ("server", "admin", "node")]
    for name in ("nodes", "models"):
        places += [(f"{name}[{i}]", table) for i, table in enumerate(found.get(name) or ())]
    for path, table in places:
        if table is not None:
            yield f"{path}.tls", table.tls
