"""The relay against another server on a real port: what it is sent, and what comes back of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import (
    BadRequest,
    Refusal,
    Unavailable,
    UpstreamFailed,
)  # fmt: skip
from gateway.prices import Usage
from gateway.schema import decode_completion
from tests.gateway.relaying import (
    ANSWER,
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
from tests.runtime.upstream import Exchange, upstream


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
        ({"cache": "shared-accepted"}, 0),
        ({"cache": "off"}, 0),
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
            await relay.whole(errand(server, domain=domain))
        salts = [asked.json()["cache_salt"] for asked in server.asked]
        assert salts[0] == salts[2] != salts[1]
        await relay.whole(errand(server, model={"cache": "off"}))
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
