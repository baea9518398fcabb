"""What each kind of server is sent: its own way of keeping tenants' caches apart, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import BadRequest, ContextTooLong, Refusal, Unsupported, UpstreamFailed
from gateway.relay.extra_fields import FIELDS
from gateway.relay.relay import Relay
from gateway.schema import decode_completion
from runtime.config.attached import KINDS
from tests.gateway.relaying import (
    BOTH,
    CHUNK,
    DONE,
    USAGE,
    collect,
    errand,
    relaying,
    stream_ok,
    text,
    whole_ok,
)
from tests.runtime.upstream import Exchange, Upstream, upstream

EVERYTHING: dict[str, Any] = {
    "temperature": 0.5, "top_p": 0.5, "seed": 3, "stop": ["x"], "max_tokens": 5,
    "user": "u", "prompt_cache_key": "k", "metadata": {"a": "b"}, "store": True,
    "service_tier": "auto", "safety_identifier": "s", "parallel_tool_calls": True,
}  # fmt: skip


async def sent(relay: Relay, server: Upstream, kind: str, streamed: bool) -> dict[str, Any]:
    given = errand(server, model={"kind": kind}, stream=streamed, **EVERYTHING)
    await (collect(relay, given) if streamed else relay.whole(given))
    found: dict[str, Any] = server.asked[-1].json()
    return found


async def ok(exchange: Exchange) -> None:
    await (stream_ok if exchange.json().get("stream") else whole_ok)(exchange)


@BOTH
@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_is_sent_listed_fields_alone(kind: str, streamed: bool) -> None:
    async with upstream(ok) as server, relaying() as relay:
        body = await sent(relay, server, kind, streamed)
        assert body.keys() <= FIELDS | KINDS[kind].uncached.keys() | {KINDS[kind].inside}
        assert ("cache_salt" in body) == (kind != "llamacpp")
        assert body.get("cache_prompt", None) is (False if kind == "llamacpp" else None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [-1, -7, -(2**63)])
async def test_a_seed_below_zero_is_one_everywhere(kind: str, seed: int) -> None:
    """TensorRT-LLM refuses it, vLLM and llama.cpp take -1 for none: the same is asked for twice."""
    async with upstream(ok) as server, relaying() as relay:
        for _ in range(2):
            await relay.whole(errand(server, model={"kind": kind}, seed=seed))
        first, second = (asked.json()["seed"] for asked in server.asked)
        assert first == second
        assert first == seed if kind == "openai" else 0 <= first < 2**31
        await relay.whole(errand(server, model={"kind": kind}, seed=2**62))
        assert server.asked[-1].json()["seed"] == 2**62


async def plain(relay: Relay, server: Upstream, **model: Any) -> dict[str, Any]:
    given = errand(server, model=model)
    given.ask = decode_completion(b'{"model":"ours","prompt":"hi"}')
    await relay.whole(given)
    found: dict[str, Any] = server.asked[-1].json()
    return found


@pytest.mark.parametrize("kind", ["vllm", "sglang", "openai", "dynamo"])
async def test_plain_prompts_are_salted_where_that_is_honoured(kind: str) -> None:
    async with upstream(ok) as server, relaying() as relay:
        assert "cache_salt" in await plain(relay, server, kind=kind)


async def test_plain_prompts_of_tensorrt_llm_need_another_way() -> None:
    """It takes a salt for chats alone: without one, prompts of tenants would share a cache."""
    async with upstream(ok) as server, relaying() as relay:
        with pytest.raises(Unsupported, match="/v1/chat/completions"):
            await plain(relay, server, kind="trtllm")
        assert server.asked == []
        for cache in ("off", "shared-accepted"):
            assert "cache_salt" not in await plain(relay, server, kind="trtllm", cache=cache)


async def test_dynamo_is_salted_where_its_router_and_where_its_vllm_processor_looks() -> None:
    """What the operator says in the same object and the salt stand side by side."""
    hints = {"nvext": {"agent_hints": {"priority": 5}}}
    async with upstream(ok) as server, relaying() as relay:
        for more in ({}, {"extra_body": hints}):
            body = await plain(relay, server, kind="dynamo", cache="salted", **more)
            assert body["nvext"].pop("cache_salt") == body["cache_salt"]
            assert body["nvext"] == (hints["nvext"] if more else {})
        body = await plain(relay, server, kind="dynamo", cache="off", extra_body=hints)
        assert body["nvext"] == hints["nvext"]
        assert "cache_salt" not in body


async def test_llama_cpp_shares_only_where_that_was_accepted() -> None:
    async with upstream(ok) as server, relaying() as relay:
        body = await plain(relay, server, kind="llamacpp", cache="shared-accepted")
        assert body.keys().isdisjoint({"cache_prompt", "cache_salt"})


TOP = {"object": "error", "message": "canary", "type": "BadRequestError", "param": None}
ERRORS: dict[str, tuple[int, Any, type[Refusal]]] = {
    "openai": (400, {"error": {"message": "m", "type": "invalid_request_error"}}, BadRequest),
    "vllm, nested": (400, {"error": {"message": "m", "code": 400}}, BadRequest),
    "vllm and trtllm, flat": (400, TOP | {"code": 400}, BadRequest),
    "trtllm, a text": (400, {"error": "1 validation error"}, BadRequest),
    "llama.cpp": (400, {"error": {"code": 400, "type": "exceed_context_size_error"}},
                  ContextTooLong),
    "vllm, too long": (400, {"error": {"message": "This model's maximum context length is 2048"}},
                       ContextTooLong),
    "vllm, longer": (400, TOP | {"message": "The decoder prompt (length 9) is longer than the "
                                            "maximum model length of 8"}, ContextTooLong),
    "sglang, too long": (400, TOP | {"message": "The input (9 tokens) is longer than the model's "
                                                "context length (8 tokens)."}, ContextTooLong),
    "trtllm, too long": (400, TOP | {"message": "The sum of prompt length (9.0), query length (0) "
                                                "should not exceed max_num_tokens (8)"},
                         ContextTooLong),
    "sglang": (500, {"object": "error", "message": "m", "code": 500}, UpstreamFailed),
    "fastapi": (422, {"detail": [{"loc": ["body"], "msg": "m"}]}, BadRequest),
}  # fmt: skip


@BOTH
@pytest.mark.parametrize("name", ERRORS)
async def test_errors_of_each_shape_become_ours(name: str, streamed: bool) -> None:
    status, body, kind = ERRORS[name]
    async with upstream(lambda e: e.reply_json(status, body)) as server, relaying() as relay:
        given = errand(server, stream=streamed)
        with pytest.raises(Refusal) as told:
            await (collect(relay, given) if streamed else relay.whole(given))
        assert type(told.value) is kind


@pytest.mark.parametrize(
    "event", [{"error": {"message": "m", "code": 500}}, {"error": "m"}, TOP | {"code": 500}]
)
async def test_an_error_event_of_either_shape_ends_the_stream(event: dict[str, Any]) -> None:
    async with (
        upstream(lambda e: e.events(text("a"), event, DONE)) as server,
        relaying() as relay,
    ):
        with pytest.raises(UpstreamFailed):
            await collect(relay, errand(server, stream=True))


async def test_usage_is_read_from_any_chunk_and_the_last_wins() -> None:
    """litellm#36168: a total beside choices was lost, and with it the cached tokens' price."""
    running = [
        text("a") | {"usage": {"prompt_tokens": 7, "completion_tokens": n, "total_tokens": 7 + n}}
        for n in (1, 2)
    ]
    last = text("b", "stop") | {
        "usage": USAGE | {"completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    }
    async with (
        upstream(lambda e: e.events(*running, last, CHUNK | {"choices": []}, DONE)) as server,
        relaying() as relay,
    ):
        frames = await collect(relay, errand(server, model={"kind": "vllm"}, stream=True))
        totals = [frame.usage for frame in frames if frame.usage]
        assert (totals[-1].cached_input_tokens, totals[-1].output_tokens) == (4, 3)
        assert b"usage" not in b"".join(frame.data for frame in frames)


@BOTH
async def test_an_explicit_zero_is_a_count_and_nothing_is_none(streamed: bool) -> None:
    """litellm#37992: zero was taken for missing, and an estimate was billed."""
    zero = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    for usage, missing in ((zero, False), (None, True), ({}, True)):

        async def answer(exchange: Exchange, usage: Any = usage) -> None:
            if streamed:
                await exchange.events(
                    text("a", "stop"), CHUNK | {"choices": [], "usage": usage}, DONE
                )
            else:
                choices = [{"index": 0, "message": {}, "finish_reason": "stop"}]
                await exchange.reply_json(200, {"choices": choices, "usage": usage})

        async with upstream(answer) as server, relaying() as relay:
            given = errand(server, stream=streamed)
            if streamed:
                found = [frame.usage for frame in await collect(relay, given) if frame.usage]
            else:
                found = [one for one in [(await relay.whole(given)).usage] if one]
            assert (found == []) == missing


async def test_utf_8_cut_into_pieces_of_seven_bytes_comes_through_whole() -> None:
    """aisix#111: characters split across reads became U+FFFD."""
    words = "héllo 日本語 🙂🏳️‍🌈 \u202e ß"

    async def sliced(exchange: Exchange) -> None:
        import json

        data = b"".join(
            b"data: " + json.dumps(text(word), ensure_ascii=False).encode() + b"\n\n"
            for word in (words, words[::-1])
        )
        data += b"data: " + json.dumps(text("", "stop")).encode() + b"\n\n" + DONE
        await exchange.events(end=False)
        for at in range(0, len(data), 7):
            await exchange.event(data[at : at + 7])
        await exchange.send(b"0\r\n\r\n")

    async with upstream(sliced) as server, relaying() as relay:
        frames = await collect(relay, errand(server, stream=True))
        told = b"".join(frame.data for frame in frames).decode()
        assert words in told
        assert words[::-1] in told
        assert "\ufffd" not in told
