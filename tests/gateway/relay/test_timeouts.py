"""Each time limit, against a server that is silent just there (litellm#38358, #19909)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from gateway.errors import Unavailable, UpstreamTimeout
from runtime.config.sections import RelaySettings
from tests.gateway.front import BODY, CHAT, ONE_MODEL, gateway
from tests.gateway.relaying import BOTH, collect, deployment_of, errand, relaying, text, whole_ok
from tests.runtime.upstream import Exchange, Upstream, upstream

LONG = 60.0


@BOTH
async def test_connect_s_against_one_that_never_shakes_hands(streamed: bool) -> None:
    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    settings = RelaySettings(connect_s=0.2, start_s=LONG, first_byte_s=LONG, idle_s=LONG)
    async with relaying(settings) as relay, asyncio.timeout(30):
        listening = await asyncio.start_server(deaf, "127.0.0.1", 0)
        server = Upstream(whole_ok, scheme="https")
        server.port = listening.sockets[0].getsockname()[1]
        given = errand(server, stream=streamed)
        with pytest.raises(Unavailable):
            await (collect(relay, given) if streamed else relay.whole(given))
        listening.close()


@BOTH
@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 X\r\ncontent-length: 10\r\n\r\n"])
async def test_first_byte_s_against_one_that_is_silent_from_the_start(
    said: bytes, streamed: bool
) -> None:
    async def silent(exchange: Exchange) -> None:
        await exchange.send(said)
        await exchange.gone()

    settings = RelaySettings(connect_s=LONG, start_s=LONG, first_byte_s=0.2, idle_s=LONG)
    async with upstream(silent) as server, relaying(settings) as relay, asyncio.timeout(30):
        given = errand(of=deployment_of(server), stream=streamed)
        with pytest.raises(UpstreamTimeout):
            await (collect(relay, given) if streamed else relay.whole(given))
        assert given.attempts == 1, "a silence isn't waited out twice"


async def test_idle_s_against_one_that_falls_silent() -> None:
    async def falls_silent(exchange: Exchange) -> None:
        await exchange.events(text("a"), end=False)
        await exchange.gone()

    settings = RelaySettings(connect_s=LONG, start_s=LONG, first_byte_s=LONG, idle_s=0.2)
    async with upstream(falls_silent) as server, relaying(settings) as relay, asyncio.timeout(30):
        with pytest.raises(UpstreamTimeout):
            await collect(relay, errand(server, stream=True))


async def test_first_byte_s_bounds_an_unstreamed_answer_as_a_whole() -> None:
    async def drips(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 X\r\ncontent-length: 1000\r\n\r\n")
        for _ in range(1000):
            await exchange.send(b" ")
            await asyncio.sleep(0.05)

    settings = RelaySettings(connect_s=LONG, start_s=LONG, first_byte_s=0.3, idle_s=LONG)
    async with upstream(drips) as server, relaying(settings) as relay, asyncio.timeout(30):
        with pytest.raises(UpstreamTimeout):
            await relay.whole(errand(server))


async def test_wall_s_against_one_that_never_ends_and_is_never_silent(tmp_path: Path) -> None:
    left = asyncio.Event()

    async def drips(exchange: Exchange) -> None:
        await exchange.events(end=False)
        try:
            while True:
                await exchange.event(text("a"))
                await asyncio.sleep(0.05)
        except ConnectionError:
            left.set()

    config = "[limits]\nwall_s = 0.5\n" + ONE_MODEL
    async with gateway(tmp_path, drips, config) as found, asyncio.timeout(60):
        got = await found.http.post(CHAT, json=BODY | {"stream": True})
        *_, last = [event for event in got.text.split("\n\n") if event]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "request_timeout"
        assert "[DONE]" not in got.text
        (row,) = found.rows()
        assert (row["outcome"], row["billable"]) == ("timeout", 0)
        await left.wait()
