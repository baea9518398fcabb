"""To whom the admin API answers at all: by the name it was called, whatever the key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.admin.console import Console, console, is_problem


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Console]:
    async with console(tmp_path) as found:
        yield found


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("localhost", True),
        ("LOCALHOST:8788", True),
        ("localhost.", True),
        ("127.0.0.1:8788", True),
        ("[::1]:8788", True),
        ("[::1]", True),
        ("192.0.2.7", True),  # an address can't be rebound
        ("console.example:8788", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
        ("[::1", False),
        ("[fe80::1%x]", False),
        ("fe80::1%evil.example", False),
        ("[fe80::1]:8788", True),
    ],
)
async def test_only_names_of_ours_are_answered(desk: Console, host: str, is_ours: bool) -> None:
    async with desk.client(host=host) as http:
        answer = await http.get("/admin/v1/tenants")
    if is_ours:
        assert answer.status_code == 200
    else:
        is_problem(answer, "wrong-host")


async def test_two_host_headers_are_refused_whichever_is_first(desk: Console) -> None:
    for hosts in (("127.0.0.1", "evil.example"), ("evil.example", "127.0.0.1")):
        given = [(b"host", host.encode()) for host in hosts]
        given.append((b"authorization", f"Bearer {desk.key}".encode()))
        scope = {
            "type": "http", "method": "GET", "path": "/admin/v1/tenants", "query_string": b"",
            "headers": given, "http_version": "1.1", "raw_path": b"", "scheme": "http",
        }  # fmt: skip
        sent: list[Any] = []

        async def send(message: Any, sent: list[Any] = sent) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        await desk.app(scope, receive, send)
        assert sent[0]["status"] == 421, sent
