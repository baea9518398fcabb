"""A gateway whose certificates are renewed while it serves."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.authority import Authority, Issued
from tests.e2e.http2 import connect
from tests.e2e.test_tls import SERVER
from tests.stack import Stack, fake_config, running
from tests.waiting import wait_for

DRAIN_S = 4


@contextmanager
def with_certificates(folder: Path) -> Iterator[tuple[Stack, Authority]]:
    """A gateway that serves HTTPS, and the authority that issues its certificates."""
    authority = Authority(folder)
    authority.issue()
    config = fake_config(step_s=0.01, more=f"[server]\ndrain_s = {DRAIN_S}\n{SERVER}")
    with running(authority.folder, config, tls=authority.context()) as stack:
        yield stack, authority


def serial(stack: Stack) -> int:
    """Of the certificate that a new connection is shown."""
    assert isinstance(stack.tls, ssl.SSLContext)
    with connect(stack, stack.tls) as sock:
        shown = sock.getpeercert()
        assert shown
        return int(str(shown["serialNumber"]), 16)


def shows(stack: Stack, issued: Issued) -> None:
    """Returns once a new connection is shown this one."""
    wait_for(lambda: serial(stack) == issued.serial)


def renew(stack: Stack, authority: Authority) -> Issued:
    """New certificates, written one file after the other; returns once one connection has them.

    The worker that shows them may not have taken over yet: see `taken_over`.
    """
    issued = authority.issue()
    shows(stack, issued)
    return issued


def taken_over(stack: Stack, issued: Issued) -> None:
    """Returns once the one that shows these serves, and the one before retires."""
    wait_for(
        lambda: f"{issued.serial:X}" in {d["serial"] for d in said(stack, "certificate_in_use")}
    )


def coming(stack: Stack, worker: int) -> int:
    """The worker that comes up beside this one, as soon as there is one."""
    found: list[int] = []

    def others() -> list[int]:
        found[:] = [pid for pid in stack.children("spawn_main") if pid != worker]
        return found

    wait_for(others)
    return found[0]


def said(stack: Stack, event: str) -> list[dict[str, Any]]:
    """What the log has of this event."""
    lines = [json.loads(line) for line in stack.log.read_text().splitlines() if line[:1] == "{"]
    return [line for line in lines if line.get("event") == event]
