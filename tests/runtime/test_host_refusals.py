"""A host over a real server on its socket: whom and what it refuses."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtime.capability import Signer
from tests.runtime.asking import CHAT, COMPLETIONS, MESSAGES, PROMPT, post
from tests.runtime.servers import SEED, RunningHost, running_host


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[RunningHost]:
    async with running_host(tmp_path) as host:
        yield host


def bad_tokens() -> list[str]:
    old = Signer(SEED, now=lambda: time.time() - 100)
    ahead = Signer(SEED, now=lambda: time.time() + 86400)  # tests may begin late
    return [
        "", "Bearer", "Basic abc", "Bearer x.y.z", "Bearer \xff", "garbage",
        f"Bearer {Signer(SEED).mint('d', 'other')}",
        f"Bearer {Signer(bytes(32)).mint('d', 'echo')}",
        f"Bearer {old.mint('d', 'echo')}",
        f"Bearer {ahead.mint('d', 'echo')}",
        Signer(SEED).mint("d", "echo"),
    ]  # fmt: skip


@pytest.mark.parametrize("value", bad_tokens(), ids=range(11))
@pytest.mark.parametrize("streamed", [True, False])
async def test_without_a_good_capability_the_engine_is_untouched(
    host: RunningHost, value: str, streamed: bool
) -> None:
    answer = await host.client.post(
        CHAT,
        json=MESSAGES | {"stream": streamed},
        headers={b"authorization": value.encode("latin-1")},
    )
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "capability_refused"
    assert (await host.client.get("/stats")).json()["steps"] == 0


BAD: list[tuple[str, object, str, str]] = [
    ("an unknown field", PROMPT | {"domain": "victim"}, COMPLETIONS, "invalid_request"),
    ("a field of a turn", MESSAGES | {"messages": [{"role": "user", "content": "x", "tag": 1}]},
     CHAT, "invalid_request"),
    ("no JSON", b"{", CHAT, "invalid_request"),
    ("no body", b"", CHAT, "invalid_request"),
    ("broken UTF-8", b'{"model":"echo","prompt":"\xff"}', COMPLETIONS, "invalid_request"),
    ("deep nesting", b'{"stop":' + b"[" * 100_000, COMPLETIONS, "invalid_request"),
    ("a prompt in a chat", PROMPT, CHAT, "invalid_request"),
    ("messages in a completion", MESSAGES, COMPLETIONS, "invalid_request"),
    ("both", PROMPT | MESSAGES, CHAT, "invalid_request"),
    ("no messages", MESSAGES | {"messages": []}, CHAT, "invalid_request"),
    ("an empty prompt", PROMPT | {"prompt": ""}, COMPLETIONS, "invalid_request"),
    ("no ids", PROMPT | {"prompt": []}, COMPLETIONS, "invalid_request"),
    ("no tokens", PROMPT | {"max_tokens": 0}, COMPLETIONS, "invalid_request"),
    ("too hot", PROMPT | {"temperature": 2.5}, COMPLETIONS, "invalid_request"),
    ("an id that is no token", PROMPT | {"prompt": [2**31 - 1]}, COMPLETIONS, "invalid_request"),
    ("a negative id", PROMPT | {"prompt": [-1]}, COMPLETIONS, "invalid_request"),
    ("a seed over 64 bits", PROMPT | {"seed": 2**70}, COMPLETIONS, "invalid_request"),
    ("more than the context", PROMPT | {"prompt": "x" * 8192}, COMPLETIONS,
     "context_length_exceeded"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "path", "code"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_bad_request_is_refused_with_400_before_the_engine_works(
    host: RunningHost, body: object, path: str, code: str, streamed: bool
) -> None:
    if isinstance(body, dict) and streamed:
        body = body | {"stream": True}
    status, answer = await post(host, path, body)
    assert (status, answer["error"]["code"]) == (400, code)
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert (await host.client.get("/stats")).json()["steps"] == 0
    assert host.host.thread.in_flight == 0


async def test_other_routes_and_methods_are_not_found(host: RunningHost) -> None:
    for method, path in (("GET", CHAT), ("POST", "/v1/embeddings"), ("GET", "/x")):
        answer = await host.client.request(method, path, headers=host.authorization())
        assert answer.status_code in (404, 405), path


async def test_a_draining_host_refuses_with_503_and_tells_it(host: RunningHost) -> None:
    assert (await host.client.get("/health")).json()["state"] == "ready"
    assert (await host.client.post("/drain")).json() == {"in_flight": 0}
    for streamed in (True, False):
        status, body = await post(host, CHAT, MESSAGES | {"stream": streamed})
        assert (status, body["error"]["code"]) == (503, "draining")
    health = await host.client.get("/health")
    assert (health.status_code, health.json()["state"]) == (200, "draining")
