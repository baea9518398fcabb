"""The relay against a server that fails, stays silent or goes: every fault is one of ours."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest

from gateway.errors import (
    BadRequest,
    ContextTooLong,
    IntegrityAbort,
    Internal,
    Refusal,
    Unavailable,
    UpstreamFailed,
    UpstreamTimeout,
)  # fmt: skip
from gateway.relay.sse import Frame
from runtime.config.sections import RelaySettings
from tests.gateway.relaying import (
    BOTH,
    CHUNK,
    DONE,
    collect,
    errand,
    relaying,
    text,
    whole_ok,
)
from tests.runtime.upstream import Exchange, Upstream, upstream


def error(code: str | None, message: str = "canary") -> bytes:
    return json.dumps({"error": {"message": message, "type": "t", "code": code}}).encode()


STATUSES: list[tuple[int, bytes, type[Refusal]]] = [
    (400, error(None), BadRequest), (400, error("context_length_exceeded"), ContextTooLong),
    (400, error("exceed_context_size_error"), ContextTooLong), (413, error(None), BadRequest),
    (422, b'{"detail":"x"}', BadRequest), (401, error("invalid_api_key"), UpstreamFailed),
    (401, error("capability_refused"), Internal), (403, error(None), UpstreamFailed),
    (404, error("model_not_found"), UpstreamFailed),
    (429, error("rate_limit_exceeded"), Unavailable), (503, error(None), Unavailable),
    (500, error(None), UpstreamFailed), (500, b"<html>canary</html>", UpstreamFailed),
    (502, b"", UpstreamFailed), (500, b"[1]", UpstreamFailed), (500, b"\xff", UpstreamFailed),
    (400, b"not JSON", BadRequest), (500, b'{"error":"canary"}', UpstreamFailed),
    (302, b"", UpstreamFailed), (500, b"x" * 100_000, UpstreamFailed),
    (500, b"[" * 60_000, UpstreamFailed),
]  # fmt: skip


@BOTH
@pytest.mark.parametrize(("status", "body", "kind"), STATUSES, ids=range(len(STATUSES)))
async def test_a_server_s_status_becomes_one_of_ours(
    status: int, body: bytes, kind: type[Refusal], streamed: bool
) -> None:
    """And its 5xx texts, which may name its insides, stay here."""
    async with upstream(lambda e: e.reply(status, body)) as server, relaying() as relay:
        given = errand(server, stream=streamed)
        with pytest.raises(Refusal) as told:
            await (collect(relay, given) if streamed else relay.whole(given))
        assert type(told.value) is kind
        assert ("canary" in told.value.message) <= (told.value.row.status == 400)


STREAMS: dict[str, tuple[list[Any], type[Refusal]]] = {
    "no end": ([text("a")], UpstreamFailed),
    "nothing": ([], UpstreamFailed),
    "a finish but no DONE": ([text("a", "stop")], UpstreamFailed),
    "an error event": ([text("a"), {"error": {"message": "m"}}, DONE], UpstreamFailed),
    "an integrity abort": ([{"error": {"code": "kv_integrity_abort"}}], IntegrityAbort),
    "no JSON": ([text("a"), b"data: x\n\n"], UpstreamFailed),
    "no chunk": ([text("a"), b'data: {"choices":[7]}\n\n', DONE], UpstreamFailed),
    "a usage that can't be": ([CHUNK | {"usage": {"prompt_tokens": 1}}], UpstreamFailed),
}


@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_that_goes_wrong_never_says_done(name: str) -> None:
    events, kind = STREAMS[name]
    async with upstream(lambda e: e.events(*events)) as server, relaying() as relay:
        seen: list[Frame] = []
        with pytest.raises(Refusal) as told:
            await collect(relay, errand(server, stream=True), seen)
        assert type(told.value) is kind
        assert not any(frame.done for frame in seen)


async def test_a_stream_cut_in_the_middle_is_a_failure_of_the_upstream() -> None:
    async def cut(exchange: Exchange) -> None:
        await exchange.events(text("a"), end=False)
        exchange.close()

    async with upstream(cut) as server, relaying() as relay:
        with pytest.raises(UpstreamFailed, match="broke"):
            await collect(relay, errand(server, stream=True))


WRONG_BODIES: list[Any] = [
    b"", b"x", b"\xff", b"[]", b"7", b"{}", b'{"choices":[]}', b'{"choices":[{}]}',
    b'{"choices":"abc"}', b'{"choices":[{"finish_reason":{}}]}',
    b'{"choices":[{"finish_reason":7}]}',
    b'{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":1}}', b"[" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("body", WRONG_BODIES, ids=lambda body: repr(body[:50]))
async def test_an_answer_of_another_shape_is_a_failure_of_the_upstream(body: bytes) -> None:
    async with upstream(lambda e: e.reply(200, body)) as server, relaying() as relay:
        with pytest.raises(UpstreamFailed):
            await relay.whole(errand(server))


SILENT = {
    "at once": b"",
    "in an error": b"HTTP/1.1 500 X\r\ncontent-length: 10\r\n\r\n",
    "after the head": b"HTTP/1.1 200 X\r\ncontent-length: 10\r\n\r\n",
    "in the body": b"HTTP/1.1 200 X\r\ncontent-length: 10\r\n\r\n: ping",
}


@BOTH
@pytest.mark.parametrize("phase", SILENT)
async def test_a_silent_server_is_a_timeout(phase: str, streamed: bool) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.send(SILENT[phase])
        await exchange.gone()

    settings = RelaySettings(first_byte_s=0.2, idle_s=0.1)
    async with upstream(answer) as server, relaying(settings) as relay, asyncio.timeout(10):
        given = errand(server, stream=streamed)
        with pytest.raises(UpstreamTimeout):
            await (collect(relay, given) if streamed else relay.whole(given))


async def test_the_first_chunk_may_take_as_long_as_the_first_byte() -> None:
    """A host answers with its status at once, and queues the request after that."""

    async def slow(exchange: Exchange) -> None:
        await exchange.events(end=False)
        await asyncio.sleep(0.3)
        await exchange.event(text("a", "stop"))
        await exchange.event(DONE)

    settings = RelaySettings(first_byte_s=5, idle_s=0.1)
    async with upstream(slow) as server, relaying(settings) as relay:
        assert (await collect(relay, errand(server, stream=True)))[-1].done


async def test_nobody_there_is_unavailable() -> None:
    server = Upstream(whole_ok)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        server.port = sock.getsockname()[1]
    async with relaying() as relay:
        with pytest.raises(Unavailable):
            await relay.whole(errand(server))


async def test_leaving_a_stream_closes_its_connection() -> None:
    closed = asyncio.Event()

    async def endless(exchange: Exchange) -> None:
        await exchange.events(text("a"), end=False)
        await exchange.gone()
        closed.set()

    async with upstream(endless) as server, relaying() as relay:
        stream = relay.stream(errand(server, stream=True))
        await anext(stream)
        await stream.aclose()
        await asyncio.wait_for(closed.wait(), 10)


TROUBLES: dict[str, tuple[Any, str]] = {
    "a refused key": (lambda e: e.reply_json(401, {"error": {"code": "bad_key"}}), "401 bad_key"),
    "a failure": (lambda e: e.reply(500, b"oops"), "answers 500"),
    "a cut": (lambda e: e.events(text("a")), "no end of the stream"),
    "an error event": (lambda e: e.events({"error": {"message": "m"}}), "ended in an error event"),
    "no answer": (lambda e: e.send(b"HTTP/1.1 200"), "broke off"),
    "our field": (
        lambda e: e.reply_json(400, {"error": {"message": "cache_salt?"}}),
        "refuses the field cache_salt",
    ),
}


@pytest.mark.parametrize("name", TROUBLES)
async def test_the_operator_is_told_what_went_wrong_last(name: str) -> None:
    answer, reason = TROUBLES[name]

    async def answers(exchange: Exchange) -> None:
        await answer(exchange)
        exchange.close()

    async with upstream(answers) as server, relaying() as relay:
        with pytest.raises(Refusal):
            await collect(relay, errand(server, stream=True))
        (last,) = relay.attached.troubles.told()["ours"]
        assert reason in last.reason
        assert last.url == f"{server.url}/v1"


async def test_what_a_client_did_wrong_is_no_trouble_of_the_server_s() -> None:
    async def refuses(exchange: Exchange) -> None:
        await exchange.reply_json(400, {"error": {"message": "too hot"}})

    async with upstream(refuses) as server, relaying() as relay:
        with pytest.raises(BadRequest):
            await relay.whole(errand(server))
        assert relay.attached.troubles.told() == {}
