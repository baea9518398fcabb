"""The fake itself: it has the real one's shapes and manners, so that tests with it mean a thing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.stack import REPO
from tests.trtllm.app import PRIVATE
from tests.trtllm.faults import FAULTS
from tests.trtllm.serving import Served, served
from tests.waiting import wait_for

CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 4,
}
STREAM = CHAT | {"stream": True, "stream_options": {"include_usage": True}}


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("t")) as found:
        yield found


@pytest.fixture(autouse=True)
def well(fake: Served) -> None:
    fake.fail()


def post(fake: Served, body: dict[str, Any], path: str = "/chat/completions") -> httpx.Response:
    return httpx.post(fake.url + path, json=body, timeout=30)


def events(fake: Served, body: dict[str, Any], path: str = "/chat/completions") -> bytes:
    return post(fake, body, path).content


def test_a_stream_is_written_as_the_real_one_writes_it(fake: Served) -> None:
    got = events(fake, STREAM)
    first, second, *_, last, end, _ = got.split(b"\n\n")
    assert first.endswith(b"} "), "a space before the newline of the role chunk"
    assert b'"finish_reason"' not in second, "what is null is left out of a chat's chunk"
    assert json.loads(last[6:])["choices"] == []
    assert json.loads(last[6:])["usage"]["completion_tokens"] == 4
    assert end == b"data: [DONE]"
    assert b"usage" not in events(fake, CHAT | {"stream": True}), "without stream_options, no usage"
    along = STREAM | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    assert events(fake, along).count(b'"usage"') == 1 + 4 + 1


def test_salts_keep_prefixes_apart_for_chats_and_are_refused_for_plain_prompts(
    fake: Served,
) -> None:
    long = [{"role": "user", "content": "a prompt of more than one block of tokens " * 8}]

    def cached(salt: str) -> int:
        got = post(fake, CHAT | {"messages": long, "cache_salt": salt}).json()
        found: int = got["usage"]["prompt_tokens_details"]["cached_tokens"]
        return found

    assert [cached("a"), cached("a") > 100, cached("b")] == [0, True, 0]
    refused = post(fake, {"model": "m", "prompt": "hi", "cache_salt": "a"}, "/completions")
    assert refused.status_code == 400
    assert "'cache_salt'), 'msg': 'Extra inputs are not permitted'" in refused.json()["error"]
    fake.fail("no_salts")
    assert [cached("c"), cached("d") > 100] == [0, True]


def test_token_ids_stand_for_the_messages(fake: Served) -> None:
    ids = [256, *b"hi"]
    plain = post(fake, {"model": "m", "prompt": "hi", "max_tokens": 4}, "/completions").json()
    chat = post(fake, CHAT | {"messages": [], "prompt_token_ids": ids}).json()
    assert chat["choices"][0]["message"]["content"] == plain["choices"][0]["text"]
    assert chat["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"] == 3


ELSEWHERE = {"hangs", "exits", "slow_first", "orphans", "no_salts", "misses_stops"}  # alone
STREAMED = {"no_done", "garbage", "drops", "new_ids"}  # an unstreamed answer has no such fault


def said(got: bytes) -> list[bytes]:
    """An answer but for what differs each time."""
    return re.sub(rb'"(id|created)": ?[^,]*', b"", got).split(b"\n\n")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", sorted(FAULTS.keys() - ELSEWHERE))
def test_each_fault_is_one(fake: Served, name: str, stream: bool) -> None:
    body = STREAM if stream else CHAT
    right = events(fake, body)
    fake.fail(name)
    more = {"prompt_token_ids": [5]} if name in ("no_token_ids", "other_prompt") else {}
    if name == "other_prompt":
        assert said(post(fake, body | more).content) == said(right)
        return
    if name == "drops" and stream:
        with pytest.raises(httpx.RemoteProtocolError):
            post(fake, body)
        return
    got = post(fake, body | more).content
    if name == "new_ids" and stream:
        assert len(set(re.findall(rb'"id": "[^"]*"', got))) == got.count(b'"id"')
    elif name == "drops":
        assert json.loads(got)["type"] == "BadRequestError"
    else:
        assert (said(got) == said(right)) == (not stream and name in STREAMED)


def test_it_hangs_while_its_health_is_fine_and_gives_up_who_leaves(fake: Served) -> None:
    fake.fail("hangs")
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{fake.url}/chat/completions", json=CHAT, timeout=0.3)
    assert httpx.get(fake.url.removesuffix("/v1") + "/health").status_code == 200
    wait_for(lambda: fake.told()["in_hand"] == 0)
    assert fake.told()["aborted"] >= 1


def test_blocks_that_nobody_frees_end_in_answers_without_tokens(tmp_path: Path) -> None:
    with served(tmp_path, config={"kv_cache_config": {"max_tokens": 128}}) as fake:
        fake.fail("orphans", slow_first={"seconds": 30, "times": 4})
        for _ in range(4):
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{fake.url}/chat/completions", json=CHAT, timeout=0.3)
        wait_for(lambda: fake.told()["aborted"] == 4)
        got = post(fake, CHAT)
        assert (got.status_code, got.json()["usage"]["completion_tokens"]) == (200, 0)


def test_a_lost_executor_ends_the_process(tmp_path: Path) -> None:
    with served(tmp_path) as fake:
        fake.fail("exits")
        assert post(fake, CHAT).content == b"null"
        assert fake.process
        fake.process.wait(30)


def test_private_routes_are_there_and_touching_them_is_seen(fake: Served) -> None:
    fake.seen(forget=True)
    for path, methods in PRIVATE.items():
        for method in methods:
            url = fake.url.removesuffix("/v1") + path.format(response_id="r")
            assert httpx.request(method, url).status_code == 200, path
    assert len(fake.seen()) == sum(map(len, PRIVATE.values()))


def test_its_file_may_hold_no_key_that_isn_t_known(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text("kv_cache_config: {enable_block_reuse: true, made_up: 1}\nguesses: 3\n")
    command = [sys.executable, "-m", "tests.trtllm_serve", "m", "--config", str(path)]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "guesses\n  Extra inputs are not permitted" in done.stderr
    assert "kv_cache_config.made_up\n  Extra" in done.stderr
