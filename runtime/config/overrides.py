"""What the environment of the process says of the listeners wins over the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from runtime.config import words
from runtime.config.kinds import Host, Port, PortOrNone
from runtime.config.report import Report
from runtime.config.sections import FileSettings
from runtime.config.store import url_fault
from runtime.config.tls import ServerTls

# What each may be.
KINDS: dict[str, Any] = {
    "BULKHEAD_HOST": Host,
    "BULKHEAD_PORT": Port,
    "BULKHEAD_ADMIN_HOST": Host,
    "BULKHEAD_ADMIN_PORT": PortOrNone,
}


def check(env: Mapping[str, str], report: Report) -> None:
    """Tell of hosts, ports and URLs that can't be."""
    for name, kind in KINDS.items():
        if (text := env.get(name, "")) and (told := fault(kind, text)):
            report.error(name, told)
    if (url := env.get("BULKHEAD_STORE_URL", "")) and (told := url_fault(url)):
        report.error("BULKHEAD_STORE_URL", told)  # it may hold a password: it isn't shown


def fault(kind: Any, text: str) -> str:
    """Why a text from outside the file isn't of a kind; empty if it is."""
    return "" if _is(kind, text) else f"expected {words.expected(kind)}, found {words.found(text)}"


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


def _is(kind: Any, text: str) -> bool:
    if kind is not Host and not (text.isascii() and text.isdigit()):  # 8e3 is a number, too
        return False
    try:
        msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError:
        return False
    return True


def local_tls(folder: str) -> ServerTls:
    """The certificate that `dev --https` has made in this folder."""
    return ServerTls(cert=f"{folder}/cert.pem", key=f"{folder}/key.pem")
