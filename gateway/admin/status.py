"""What runs on this state folder, told in one answer."""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from typing import Any

import structlog
from msgspec import Struct

from gateway.stores import database_of
from gateway.version import version
from runtime.config.tls import ServerTls
from runtime.deploy.running import Running, running
from runtime.deployments import Deployments, NoDeployment
from runtime.settings import Settings
from runtime.tls import certificates
from runtime.tls.certificates import BadCertificate

log = structlog.get_logger()


class Process(Struct, frozen=True, kw_only=True):
    """The process that answers: which command it is, and since when it runs."""

    command: str
    pid: int
    began: float  # unix seconds
    began_monotonic: float


def status(settings: Settings, process: Process) -> dict[str, Any]:
    """Reads files, so it belongs in a thread."""
    living = running(settings.state_dir)
    return {
        "object": "status",
        "version": version(),
        "name": settings.file.name,
        "env": settings.env,
        "command": process.command,
        "pid": process.pid,
        "started_at": _moment(process.began),
        "uptime_s": round(time.monotonic() - process.began_monotonic, 1),
        "config": settings.config_path or None,
        "state": str(settings.state_dir),
        "deployment": _deployment(settings.state_dir),
        "config_hash": settings.config_hash,
        "store": str(database_of(settings)),
        "processes": [_shown(each) for each in living],
        "certificates": {
            name: _certificate(tls, settings)
            for name, tls in (
                ("server", settings.file.server.tls),
                ("admin", settings.file.admin.tls),
                ("node", settings.file.node.tls),
            )
        },
    }


def _deployment(state_dir: Path) -> int | None:
    """The number of the one that counts."""
    try:
        current = Deployments(state_dir).current()
    except NoDeployment:
        return None
    return current.number if current else None


def _shown(process: Running) -> dict[str, Any]:
    return {
        "role": process.role,
        "pid": process.pid,
        "deployment": process.number or None,  # None: it is starting
        "fault": process.fault or None,
    }


def _certificate(tls: ServerTls, settings: Settings) -> dict[str, Any] | None:
    """Until when a listener's certificate is good; None: plain HTTP."""
    if not tls.cert:
        return None
    try:
        leaf = certificates.load(tls, settings.folder).leaf
    except BadCertificate as fault:
        return {"file": tls.cert, "fault": str(fault)}
    assert leaf is not None
    left = leaf.not_after - datetime.datetime.now(datetime.UTC)
    return {
        "file": tls.cert,
        "names": list(leaf.names),
        "not_after": leaf.not_after.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "days_left": round(left.total_seconds() / 86400, 1),
        "fingerprint": leaf.fingerprint,
    }


def _moment(seconds: float) -> str:
    when = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")
