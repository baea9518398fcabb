"""A request that goes on at another model."""

from __future__ import annotations

from pathlib import Path

from gateway.limits.limit import Kind, Limit, Take
from tests.gateway.front import BODY, CHAT, USAGE, gateway, stream_ok

STREAM = BODY | {"stream": True, "max_tokens": 100}
FALLBACK = """
[limits.per_tenant]
concurrent = 1
[[models]]
id = "first"
engine = "openai"
kind = "vllm"
url = "http://127.0.0.1:9/v1"
fallback = ["second", "third"]
[[models]]
id = "second"
engine = "openai"
kind = "vllm"
url = "{url}"
limits = { rpm = 1, tpm = 1000 }
[[models]]
id = "third"
engine = "openai"
kind = "vllm"
url = "{url}"
"""


async def test_where_another_model_answers_its_limits_count_too(tmp_path: Path) -> None:
    async with gateway(tmp_path, stream_ok, FALLBACK) as gate:
        body = STREAM | {"model": "first"}
        for model in ("second", "third"):
            answer = await gate.http.post(CHAT, json=body)
            assert (answer.status_code, answer.headers["x-bulkhead-fallback"]) == (200, model)
        counted = gate.env.admission._gate
        second = [
            Take(Limit(f"model:second:second:{kind.value}", kind, number), 0)
            for kind, number in ((Kind.REQUESTS, 1), (Kind.TOKENS, 1000))
        ]
        requests, tokens = (await counted.look(second)).levels
        assert requests > 0
        assert tokens <= USAGE["total_tokens"] * 60_000, "one request's, and corrected"
        assert len(counted) == 0
