"""Nothing of a server but its answers gets out: no header of its own, and no other route."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway.front import BODY, CHAT, gateway, text
from tests.runtime.upstream import Exchange

OURS = {
    *("content-type", "content-length", "x-request-id", "date", "server", "cache-control"),
    *("transfer-encoding", "connection", "ratelimit", "ratelimit-policy"),
}
ROUTES = (
    *("/slots", "/v1/slots", "/metrics", "/health", "/props", "/v1/embeddings", "/kv_cache_events"),
    *("/v1/kv_cache_hints", "/release_memory", "/update_weights", "/server_info", "/tokenize"),
    *("/v1/responses", "/v1/chat/completions/../../slots", "/v1//slots", "/flush_cache", "/abort"),
    *("/v1/chat/completions/", "/get_server_info", "/perf_metrics"),
)


async def talks(exchange: Exchange) -> None:
    """An answer with headers that say too much."""
    headers = (
        b"content-type: application/json\r\nset-cookie: canary=1\r\nserver: canary\r\n"
        b"x-request-id: canary\r\nx-ratelimit-limit: canary\r\nlocation: http://canary\r\n"
        b"openai-organization: canary\r\nvia: canary\r\naccess-control-allow-origin: *\r\n"
    )
    if exchange.json().get("stream"):
        data = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'
        body = data + b"data: [DONE]\n\n"
    else:
        body = b'{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}'
    head = b"HTTP/1.1 200 X\r\n" + headers + b"content-length: %d\r\n\r\n" % len(body)
    await exchange.send(head + body)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_server_s_headers_stay_here(tmp_path: Path, streamed: bool) -> None:
    async with gateway(tmp_path, talks) as found:
        got = await found.http.post(CHAT, json=BODY | {"stream": streamed})
        assert got.status_code == 200
        assert "canary" not in str(got.headers)
        mine = {name for name in got.headers if not name.startswith("x-ratelimit-")}
        assert mine <= OURS


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_a_server_s_private_routes_are_out_of_reach(tmp_path: Path, method: str) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.events(text("a", "stop"))

    async with gateway(tmp_path, answer) as found:
        for route in ROUTES:
            got = await found.http.request(method, route, json=BODY)
            assert got.status_code in (401, 404, 405), route
        assert found.server.asked == []


async def test_a_client_s_headers_stay_here_too(tmp_path: Path) -> None:
    """What it claims to be, or would salt with, reaches no server."""
    async with gateway(tmp_path, talks) as found:
        headers = {
            "x-tenant-id": "canary", "x-cache-salt": "canary", "x-forwarded-for": "canary",
            "x-request-id": "canary", "cookie": "canary", "x-session-affinity": "canary",
            "x-data-parallel-rank": "canary", "x-trtllm-runtime-control-auth": "canary",
        }  # fmt: skip
        got = await found.http.post(CHAT, json=BODY, headers=headers)
        assert got.status_code == 200
        (asked,) = found.server.asked
        assert "canary" not in str(asked.headers)
        names = {name for name, _ in asked.headers}
        assert names <= {
            "host", "content-type", "content-length", "accept-encoding", "x-request-id",
            "authorization",
        }  # fmt: skip
