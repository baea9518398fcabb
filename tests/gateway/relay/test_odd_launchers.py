"""Launchers that tell nothing, too much, or nonsense: their servers are sent nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.errors import Unavailable
from gateway.relay import guards, trust
from gateway.relay.guards import MAX_LINE_BYTES
from tests.gateway.guarding import (
    HEAD,
    counters,
    until,
    world,
)
from tests.runtime.upstream import Exchange


async def refuses(exchange: Exchange) -> None:
    await exchange.reply(401, b"", "text/plain")


async def nonsense(exchange: Exchange) -> None:
    await exchange.send(HEAD)
    await exchange.event(counters())
    await exchange.event(b"not json\n")
    await exchange.gone()


async def endless(exchange: Exchange) -> None:
    """A line of ten megabytes, as far as anybody takes it."""
    await exchange.send(HEAD)
    for _ in range(10 * 1024 // 16):
        await exchange.event(b"x" * 16 * 1024)
    await exchange.gone()


async def drips(exchange: Exchange) -> None:
    await exchange.send(HEAD)
    while True:
        await exchange.event(b" ")
        await asyncio.sleep(0.05)


async def silent(exchange: Exchange) -> None:
    await exchange.gone()


async def no_http(exchange: Exchange) -> None:
    await exchange.send(b"hello\r\n\r\n")
    exchange.close()


async def unknown(exchange: Exchange) -> None:
    await exchange.send(HEAD)
    while True:
        await exchange.event(b'{"later":"launchers"}\n')
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("launcher", "reason"),
    [
        (refuses, "401: the model's guard_secret isn't its own"),
        (nonsense, "no JSON"),
        (endless, f"more than {MAX_LINE_BYTES} bytes"),
        (drips, "silent"),
        (silent, "silent"),
        (unknown, "silent"),
        (no_http, ""),
    ],
)
async def test_a_launcher_that_tells_no_counters_is_trusted_by_nobody(
    launcher: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "SILENT_S", 0.3)
    monkeypatch.setattr(guards, "SILENT_S", 0.3)
    monkeypatch.setattr(guards, "RETRY_S", 1.0)
    async with world(launcher=launcher) as found:
        guard = found.places[0].guard
        assert guard is not None
        await until(lambda: guard.trouble and reason in guard.fault)
        with pytest.raises(Unavailable):
            await found.relay.whole(found.errand())
        assert found.attached.troubles.told()["ours"][0].guard == guard.fault
