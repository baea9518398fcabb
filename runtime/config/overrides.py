"""What the environment of the process says of the listeners wins over the file."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from runtime.config.kinds import MAX_PORT
from runtime.config.report import Report
from runtime.config.sections import FileSettings, ServerTls

PORTS = (("BULKHEAD_PORT", 1), ("BULKHEAD_ADMIN_PORT", 0))  # and the least that each may be


def check(env: Mapping[str, str], report: Report) -> None:
    """Tell of ports that can't be."""
    for name, least in PORTS:
        text = env.get(name, "")
        if text and not (text.isascii() and text.isdigit() and least <= int(text) <= MAX_PORT):
            report.error(name, f"expected a port, found {text[:40]!r}")


def apply(file: FileSettings, env: Mapping[str, str]) -> FileSettings:
    """The file's settings with the environment's in place of its own; it was checked."""
    server, admin = file.server, file.admin
    return msgspec.structs.replace(
        file,
        server=msgspec.structs.replace(
            server,
            host=env.get("BULKHEAD_HOST") or server.host,
            port=int(env.get("BULKHEAD_PORT") or server.port),
            tls=local_tls(env["BULKHEAD_TLS"]) if env.get("BULKHEAD_TLS") else server.tls,
        ),
        admin=msgspec.structs.replace(
            admin,
            host=env.get("BULKHEAD_ADMIN_HOST") or admin.host,
            port=int(env.get("BULKHEAD_ADMIN_PORT") or admin.port),
        ),
    )


def local_tls(folder: str) -> ServerTls:
    """The certificate that `dev --https` has made in this folder."""
    return ServerTls(cert=f"{folder}/cert.pem", key=f"{folder}/key.pem")
