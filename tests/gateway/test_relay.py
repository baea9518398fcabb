"""The relay against another server on a real port: what it is sent, and what comes back of it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.catalog.catalog import catalog_of
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
from gateway.prices import Usage
from gateway.relay.attached import AttachedServers
from gateway.relay.placement import Placement
from gateway.relay.relay import Errand, Relay
from gateway.relay.sse import Frame
from gateway.schema import decode_chat, decode_completion
from runtime.capability import Signer
from runtime.config.models import ModelSettings
from runtime.config.sections import RelaySettings
from tests.runtime.upstream import Exchange, Upstream, upstream

SETTINGS = RelaySettings(connect_s=1, start_s=1, first_byte_s=5, idle_s=5)
CHAT: dict[str, Any] = {
    "model": "ours", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5,
}  # fmt: skip
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
CHUNK = {"id": "theirs", "object": "chat.completion.chunk", "created": 1, "model": "theirs"}
ANSWER = {
    "id": "theirs", "object": "chat.completion", "created": 1, "model": "theirs",
    "system_fingerprint": "x", "usage": USAGE,
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "ho"},
                 "finish_reason": "stop"}],
}  # fmt: skip
DONE = b"data: [DONE]\n\n"
BOTH = pytest.mark.parametrize("streamed", [False, True])


def text(content: str, finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    return CHUNK | {"choices": [choice]}


@asynccontextmanager
async def relaying(settings: RelaySettings = SETTINGS) -> AsyncIterator[Relay]:
    attached = AttachedServers()
    try:
        yield Relay(Placement(), attached, Signer(bytes(32)), b"salt key", settings)
    finally:
        await attached.aclose()


def errand(server: Upstream, domain: str = "d", model: Any = None, **changes: Any) -> Errand:
    options = {"id": "ours", "engine": "openai", "url": f"{server.url}/v1/"} | (model or {})
    deployment = catalog_of([ModelSettings(**options)], {"KEY": "sk-there"}).deployment("ours", 0)
    ask = decode_chat(json.dumps(CHAT | changes).encode())
    return Errand(ask, deployment, domain, "req_42")


async def collect(relay: Relay, given: Errand, seen: list[Frame] | None = None) -> list[Frame]:
    frames = [] if seen is None else seen
    async for batch in relay.stream(given):
        frames += batch
    return frames


async def whole_ok(exchange: Exchange) -> None:
    await exchange.reply_json(200, ANSWER)


async def stream_ok(exchange: Exchange) -> None:
    await exchange.events(
        text("h"), text("o", "stop"), CHUNK | {"choices": [], "usage": USAGE}, DONE
    )


async def test_an_unstreamed_answer_gets_our_id_and_model_and_loses_the_rest() -> None:
    async with upstream(whole_ok) as server, relaying() as relay:
        answer = await relay.whole(errand(server))
        body = json.loads(answer.body)
        assert (body["id"], body["model"]) == ("chatcmpl-42", "ours")
        assert b"theirs" not in answer.body
        assert "system_fingerprint" not in body
        assert body["choices"] == ANSWER["choices"]
        assert (answer.usage, answer.finish_reason) == (Usage(7, 0, 2), "stop")


async def test_a_stream_gets_our_id_and_model_and_its_usage_waits() -> None:
    async with upstream(stream_ok) as server, relaying() as relay:
        frames = await collect(relay, errand(server, stream=True))
        data = b"".join(frame.data for frame in frames)
        assert b"theirs" not in data
        assert b"usage" not in data
        assert data.count(b'"chatcmpl-42"') == 2
        assert [frame.finish_reason for frame in frames if frame.finish_reason] == ["stop"]
        assert [frame.usage for frame in frames if frame.usage] == [Usage(7, 0, 2)]
        assert frames[-1].done


@pytest.mark.parametrize("end", [DONE + b": bye\n\n", b"data: [DONE]\n", b"data: [DONE]"])
async def test_an_answer_has_ended_at_its_done(end: bytes) -> None:
    """Whatever follows it, and whether or not a blank line does."""

    async def answer(exchange: Exchange) -> None:
        await exchange.events(text("ho", "stop"), end)

    async with upstream(answer) as server, relaying() as relay:
        frames = await collect(relay, errand(server, stream=True))
        assert [frame.finish_reason for frame in frames if frame.finish_reason] == ["stop"]


async def test_the_server_is_sent_its_own_model_name_and_key_and_our_limits() -> None:
    model = {
        "upstream_model": "their-name", "api_key_secret": "KEY", "default_max_tokens": 33,
        "extra_body": {"cache_prompt": False, "cache_salt": "operator"},
    }  # fmt: skip
    async with upstream(stream_ok) as server, relaying() as relay:
        await collect(relay, errand(server, model=model, stream=True, max_tokens=None, user="u"))
        (asked,) = server.asked
        assert asked.path == "/v1/chat/completions"
        assert asked.header("authorization") == "Bearer sk-there"
        assert asked.header("x-request-id") == "req_42"
        assert asked.json() == {
            "model": "their-name",
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 33,
            "stream": True,
            "stream_options": {"include_usage": True},
            "cache_prompt": False,
            "cache_salt": "operator",
        }


async def test_usage_is_asked_for_whether_or_not_the_client_does() -> None:
    async with upstream(stream_ok) as server, relaying() as relay:
        for options in (None, {"include_usage": False}, {"include_usage": True}):
            await collect(relay, errand(server, stream=True, stream_options=options))
        assert all(a.json()["stream_options"] == {"include_usage": True} for a in server.asked)


@BOTH
@pytest.mark.parametrize(
    ("model", "cached"),
    [
        ({}, 4),
        ({"cache_salt": False}, 0),
        ({"extra_body": {"cache_salt": "one for all"}}, 0),
    ],
    ids=str,
)
async def test_hits_are_told_where_they_can_only_be_the_tenant_s(
    model: dict[str, Any], cached: int, streamed: bool
) -> None:
    usage = USAGE | {"prompt_tokens_details": {"cached_tokens": 4}}

    async def answer(exchange: Exchange) -> None:
        if streamed:
            await exchange.events(text("o", "stop"), CHUNK | {"choices": [], "usage": usage}, DONE)
        else:
            await exchange.reply_json(200, ANSWER | {"usage": usage})

    async with upstream(answer) as server, relaying() as relay:
        given = errand(server, model=model, stream=streamed)
        if streamed:
            frames = await collect(relay, given)
            (found,) = [frame.usage for frame in frames if frame.usage]
            body = b"".join(frame.tail for frame in frames)
        else:
            whole = await relay.whole(given)
            assert whole.usage is not None
            found, body = whole.usage, whole.body
        assert found == Usage(7, cached, 2)
        assert b'"cached_tokens":%d' % cached in body


async def test_salts_are_equal_for_a_tenant_and_differ_between_tenants() -> None:
    async with upstream(whole_ok) as server, relaying() as relay:
        for domain in ("a", "b", "a"):
            await relay.whole(errand(server, domain))
        salts = [asked.json()["cache_salt"] for asked in server.asked]
        assert salts[0] == salts[2] != salts[1]
        await relay.whole(errand(server, model={"cache_salt": False}))
        assert "cache_salt" not in server.asked[-1].json()
        assert server.asked[-1].header("authorization") is None


@pytest.mark.parametrize(
    ("field", "asked"),
    [
        ("cache_salt", {}),
        ("cache_prompt", {}),
        ("stream_options", {"stream": True}),
        ("stream_options", {"stream": True, "stream_options": {"include_usage": False}}),
    ],
)
async def test_a_refusal_of_a_field_of_ours_is_not_the_client_s(
    field: str, asked: dict[str, Any]
) -> None:
    async def refuses(exchange: Exchange) -> None:
        await exchange.reply_json(400, {"error": {"message": f"{field}: unknown parameter"}})

    model = {"extra_body": {"cache_prompt": False}}
    async with upstream(refuses) as server, relaying() as relay:
        given = errand(server, model=model, **asked)
        with pytest.raises(UpstreamFailed) as caught:
            await (collect(relay, given) if asked else relay.whole(given))
        assert field not in caught.value.message


async def test_but_of_one_that_the_client_sent_it_is() -> None:
    async def refuses(exchange: Exchange) -> None:
        await exchange.reply_json(400, {"error": {"message": "stream_options: unknown"}})

    async with upstream(refuses) as server, relaying() as relay:
        given = errand(server, stream=True, stream_options={"include_usage": True})
        with pytest.raises(BadRequest, match="stream_options"):
            await collect(relay, given)


@pytest.mark.parametrize(
    ("status", "extra", "kind"),
    [
        (503, {"cache_prompt": False}, Unavailable),  # busy, whatever words it uses
        (429, {"cache_prompt": False}, Unavailable),
        (400, {"temperature": 0.5}, BadRequest),  # the client sent one of its own
    ],
)
async def test_what_only_sounds_like_a_field_of_ours_is_told_as_it_is(
    status: int, extra: dict[str, Any], kind: type[Refusal]
) -> None:
    async def refuses(exchange: Exchange) -> None:
        message = "cache_prompt and temperature are busy"
        await exchange.reply_json(status, {"error": {"message": message}})

    async with upstream(refuses) as server, relaying() as relay:
        given = errand(server, model={"extra_body": extra}, temperature=1.5)
        with pytest.raises(kind) as caught:
            await relay.whole(given)
        assert type(caught.value) is kind


async def test_a_completion_goes_to_its_own_route() -> None:
    async with upstream(whole_ok) as server, relaying() as relay:
        given = errand(server)
        given.ask = decode_completion(b'{"model":"ours","prompt":[1,2],"stop":"x"}')
        assert json.loads((await relay.whole(given)).body)["id"] == "cmpl-42"
        assert server.asked[0].path == "/v1/completions"
        assert server.asked[0].json()["prompt"] == [1, 2]


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
        last = relay._attached.troubles._last["ours"]
        assert reason in last.reason
        assert last.url == f"{server.url}/v1"


async def test_what_a_client_did_wrong_is_no_trouble_of_the_server_s() -> None:
    async def refuses(exchange: Exchange) -> None:
        await exchange.reply_json(400, {"error": {"message": "too hot"}})

    async with upstream(refuses) as server, relaying() as relay:
        with pytest.raises(BadRequest):
            await relay.whole(errand(server))
        assert relay._attached.troubles._last == {}
