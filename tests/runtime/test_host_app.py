"""A host over a real server on its socket: what it answers, counts and aborts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engines.api import FinishReason, KvIntegrityAbort, Output
from engines.fake import FakeEngine
from runtime.metrics import CONTENT_TYPE
from tests.runtime.asking import CHAT, COMPLETIONS, MESSAGES, PROMPT, chunk, post, stream, until
from tests.runtime.servers import GatedEngine, RunningHost, running_host


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[RunningHost]:
    async with running_host(tmp_path) as host:
        yield host


async def test_a_chat_is_answered_whole(host: RunningHost) -> None:
    status, body = await post(host, CHAT, MESSAGES, **{"x-request-id": "req_42"})
    assert status == 200
    created = body.pop("created")
    assert abs(created - time.time()) < 5
    assert body == {
        "id": "chatcmpl-42",
        "object": "chat.completion",
        "model": "echo",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "abcdab", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": {
            "prompt_tokens": 4,
            "completion_tokens": 6,
            "total_tokens": 10,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


async def test_a_completion_is_answered_whole(host: RunningHost) -> None:
    status, body = await post(host, COMPLETIONS, PROMPT, **{"x-request-id": "req_42"})
    assert (status, body["id"], body["object"]) == (200, "cmpl-42", "text_completion")
    assert body["choices"] == [
        {"index": 0, "text": "abcdab", "logprobs": None, "finish_reason": "length"}
    ]


async def test_a_prompt_of_token_ids_is_taken_as_it_is(host: RunningHost) -> None:
    body = PROMPT | {"prompt": [104, 105], "max_tokens": 4}
    assert (await post(host, COMPLETIONS, body))[1]["choices"][0]["text"] == "hihi"


async def test_a_chat_stream_counts_along_exactly(host: RunningHost) -> None:
    """After each frame, the comment before it has told how many tokens have left."""
    events = await stream(host, CHAT, MESSAGES)
    assert events[0] == b": p=4 c=0"
    opening = chunk(events[1])
    assert (opening["id"], opening["object"]) == ("chatcmpl-7", "chat.completion.chunk")
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert not events[1].startswith(b":")
    for i, event in enumerate(events[2:8], 1):
        assert event.startswith(b": t=%d\ndata: " % i)
        assert chunk(event)["choices"][0]["delta"] == {"content": "abcdab"[i - 1]}
    assert events[8].startswith(b": t=6\ndata: ")
    assert chunk(events[8])["choices"][0] | {"logprobs": 0} == {
        "index": 0, "delta": {}, "logprobs": 0, "finish_reason": "length",
    }  # fmt: skip
    assert chunk(events[9])["choices"] == []
    assert chunk(events[9])["usage"]["completion_tokens"] == 6
    assert events[10:] == [b"data: [DONE]"]


async def test_a_completion_stream_counts_along_exactly(host: RunningHost) -> None:
    events = await stream(host, COMPLETIONS, PROMPT)
    assert events[0] == b": p=4 c=0"
    assert [event.split(b"\n")[0] for event in events[1:7]] == [b": t=%d" % i for i in range(1, 7)]
    assert "".join(chunk(event)["choices"][0]["text"] for event in events[1:7]) == "abcdab"
    assert chunk(events[6])["choices"][0]["finish_reason"] == "length"
    assert chunk(events[7])["usage"]["total_tokens"] == 10


async def test_a_count_covers_tokens_whose_character_isn_t_whole_yet(host: RunningHost) -> None:
    events = await stream(host, COMPLETIONS, PROMPT | {"prompt": "é日", "max_tokens": 5})
    texts = {chunk(e)["choices"][0]["text"]: e.split(b"\n")[0] for e in events if b"t=" in e}
    assert texts["é"] == b": t=2"
    assert texts["日"] == b": t=5"


async def test_a_stop_string_ends_the_stream_and_frees_the_engine(host: RunningHost) -> None:
    body = PROMPT | {"prompt": "one two three", "max_tokens": 5000, "stop": ["two"]}
    events = await stream(host, COMPLETIONS, body)
    texts = [chunk(e)["choices"][0] for e in events if b": t=" in e]
    assert "".join(choice["text"] for choice in texts) == "one "
    assert texts[-1]["finish_reason"] == "stop"
    assert chunk(events[-2])["usage"]["completion_tokens"] == 7
    await until(lambda: not host.engine.has_work())
    assert host.host.thread.in_flight == 0


async def test_cached_tokens_are_told_within_a_domain_only(host: RunningHost) -> None:
    body = PROMPT | {"prompt": "x" * 40}
    for domain, cached in (("a", 0), ("a", 32), ("b", 0)):
        answer = await host.client.post(COMPLETIONS, json=body, headers=host.authorization(domain))
        details = answer.json()["usage"]["prompt_tokens_details"]
        assert details == {"cached_tokens": cached}, domain
    assert (await stream(host, COMPLETIONS, body))[0] == b": p=40 c=0"


async def test_an_answer_without_a_limit_gets_the_model_s_default(host: RunningHost) -> None:
    body = {"model": "echo", "prompt": "abc"}
    assert (await post(host, COMPLETIONS, body))[1]["usage"]["completion_tokens"] == 16


async def test_an_answer_is_cut_to_what_the_context_holds(host: RunningHost) -> None:
    body = PROMPT | {"prompt": "x" * 8190, "max_tokens": 100}
    status, answer = await post(host, COMPLETIONS, body)
    assert (status, answer["usage"]["total_tokens"]) == (200, 8192)


async def test_health_tells_what_runs_what_waits_and_since_when_nothing_does(
    tmp_path: Path,
) -> None:
    """Without asking the engine, which may be in the middle of a long step."""
    engine = GatedEngine(max_running=1)
    async with running_host(tmp_path, engine) as host:

        async def health() -> dict[str, Any]:
            found: dict[str, Any] = (await host.client.get("/health")).json()
            return found

        found = await health()
        assert (found["in_flight"], found["waiting"]) == (0, 0)
        assert found["idle_s"] > 0
        asked = [asyncio.ensure_future(post(host, COMPLETIONS, PROMPT)) for _ in range(2)]
        await until(lambda: host.host.thread.in_flight == 2)
        engine.allow(2)  # the first has begun; the second has its turn when that has ended
        await until(lambda: engine.waiting and engine.allowed == 0)
        found = await health()
        assert (found["in_flight"], found["waiting"], found["idle_s"]) == (2, 1, 0.0)
        engine.open()
        await asyncio.gather(*asked)
        found = await health()
        assert (found["in_flight"], found["waiting"]) == (0, 0)


async def test_an_integrity_abort_is_503_or_ends_the_stream_without_done(host: RunningHost) -> None:
    body = PROMPT | {"prompt": "integrity, please", "max_tokens": 50}
    status, answer = await post(host, COMPLETIONS, body)
    assert (status, answer["error"]["code"]) == (503, "kv_integrity_abort")
    events = await stream(host, COMPLETIONS, body)
    assert b"[DONE]" not in events[-1]
    assert chunk(events[-1])["error"]["code"] == "kv_integrity_abort"
    assert chunk(events[-1])["error"]["type"] == "server_error"
    assert not any(b'"usage"' in event for event in events)
    assert (await post(host, COMPLETIONS, PROMPT))[0] == 200, "others go on"


class BurstEngine(FakeEngine):
    """Two tokens for each request, and then its end in an error, in one step."""

    def step(self) -> list[Output]:
        """See engines.api.Engine."""
        error = KvIntegrityAbort("told to")
        told = []
        for id, one in self._requests.items():
            first, second, *_ = one.request.prompt
            told += [Output(id, (first,), cached_tokens=0), Output(id, (second,))]
            told.append(Output(id, finish=FinishReason.ERROR, error=error))
        self._requests.clear()
        return told


async def test_what_comes_at_once_leaves_at_once_and_before_the_error_that_came_with_it(
    tmp_path: Path,
) -> None:
    async with running_host(tmp_path, BurstEngine()) as host:
        events = await stream(host, COMPLETIONS, PROMPT)
        texts = [chunk(event)["choices"][0]["text"] for event in events if b": t=" in event]
        assert texts == ["a", "b"]
        assert [event.split(b"\n")[0] for event in events[1:3]] == [b": t=1", b": t=2"]
        assert chunk(events[-1])["error"]["code"] == "kv_integrity_abort"


async def test_an_engine_s_failure_is_503_and_the_host_says_it_failed(host: RunningHost) -> None:
    body = PROMPT | {"prompt": "engine, fail", "max_tokens": 50}
    status, answer = await post(host, COMPLETIONS, body)
    assert (status, answer["error"]["code"]) == (503, "engine_failed")
    health = await host.client.get("/health")
    assert (health.status_code, health.json()) == (503, {"state": "failed"})
    assert (await post(host, COMPLETIONS, PROMPT))[0] == 503


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("steps", [0, 3])
async def test_a_client_that_leaves_aborts_its_request(
    tmp_path: Path, streamed: bool, steps: int
) -> None:
    engine = GatedEngine()
    async with running_host(tmp_path, engine) as host:
        body = json.dumps(PROMPT | {"max_tokens": 1000, "stream": streamed}).encode()
        reader, writer = await asyncio.open_unix_connection(str(host.socket))
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
        head += f"authorization: {host.authorization()['authorization']}\r\n\r\n"
        writer.write(head.encode() + body)
        engine.allow(steps)
        await until(lambda: engine.waiting and engine.allowed == 0)
        if streamed and steps:
            await reader.readuntil(b": t=3")
        writer.close()
        await writer.wait_closed()
        await until(lambda: host.host.thread.in_flight == 0)
        engine.allow(1)
        stats = await host.host.thread.stats()
        assert (stats.aborted, stats.running) == (1, 0)


async def test_many_answers_at_once_don_t_mix(tmp_path: Path) -> None:
    async with running_host(tmp_path, FakeEngine()) as host:
        prompts = [f"<{i:03}>" * 3 for i in range(40)]
        bodies = [PROMPT | {"prompt": prompt, "max_tokens": 15} for prompt in prompts]
        answers = await asyncio.gather(*(post(host, COMPLETIONS, body) for body in bodies))
        assert [body["choices"][0]["text"] for _, body in answers] == prompts


async def test_a_host_whose_engine_retires_says_so_and_refuses_as_one_that_drains(
    host: RunningHost,
) -> None:
    """Before anything of an answer has left: so it is asked of another host."""
    await post(host, COMPLETIONS, PROMPT | {"prompt": "retire"})
    health = (await host.client.get("/health")).json()
    assert (health["state"], health["retirement"]) == ("ready", "told to retire")
    for streamed in (False, True):
        status, body = await post(host, COMPLETIONS, PROMPT | {"stream": streamed})
        assert (status, body["error"]["code"]) == (503, "draining")
        assert body["error"]["type"] == "server_error"


async def test_counters_are_told_as_prometheus_reads_them(host: RunningHost) -> None:
    await post(host, COMPLETIONS, PROMPT)
    answer = await host.client.get("/metrics")
    assert answer.headers["content-type"] == CONTENT_TYPE
    assert 'engine_output_tokens_total{model="echo"} 6\n' in answer.text


async def test_an_engine_without_pages_has_no_map(host: RunningHost) -> None:
    answer = await host.client.get("/pages")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_pages")
