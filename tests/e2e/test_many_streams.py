"""Sixty-four streams at once: each whole, and every token counted once, everywhere."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.e2e.ledger import exported
from tests.stack import Stack

pytestmark = pytest.mark.slow

STREAMS = 64


async def read_stream(client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    """One stream read to its end; what it said of itself."""
    text, usage, finish = "", None, None
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200
        lines = [line async for line in answer.aiter_lines() if line.startswith("data: ")]
        request_id = answer.headers["x-request-id"]
    assert lines[-1] == "data: [DONE]"
    for line in lines[:-1]:
        chunk = json.loads(line[6:])
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            text += choice["delta"].get("content") or ""
            finish = choice["finish_reason"] or finish
    return {"id": request_id, "text": text, "usage": usage, "finish": finish}


async def run_all(stack: Stack, model: str, max_tokens: int) -> list[dict[str, Any]]:
    limits = httpx.Limits(max_connections=STREAMS)
    headers = {"authorization": f"Bearer {stack.key}"}
    async with httpx.AsyncClient(
        base_url=stack.url, headers=headers, limits=limits, timeout=300
    ) as client:
        bodies = [
            {
                "model": model,
                "messages": [{"role": "user", "content": f"Count from {i} upwards, slowly."}],
                "max_tokens": max_tokens,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            for i in range(STREAMS)
        ]
        return await asyncio.gather(*(read_stream(client, body) for body in bodies))


def check_against_ledger(stack: Stack, answers: list[dict[str, Any]]) -> None:
    """Sum of usage in the answers = ledger = export, row by row."""
    rows = {row["request_id"]: row for row in exported(stack)}
    for answer in answers:
        row = rows[answer["id"]]
        assert row["input_tokens"] == answer["usage"]["prompt_tokens"]
        assert row["output_tokens"] == answer["usage"]["completion_tokens"]
        assert row["billable"] is True
    assert len({answer["id"] for answer in answers}) == STREAMS


async def test_on_the_real_engine(real_stack: Stack) -> None:
    before = real_stack.host_stats()["output_tokens"]
    answers = await run_all(real_stack, "smollm2-135m-instruct", 24)
    assert all(a["finish"] in ("length", "stop") and a["text"] for a in answers)
    check_against_ledger(real_stack, answers)
    counted = sum(a["usage"]["completion_tokens"] for a in answers)
    assert real_stack.host_stats()["output_tokens"] - before == counted, "the engine's own counter"


async def test_on_an_attached_server(real_stack: Stack) -> None:
    answers = await run_all(real_stack, "llama-cpp", 8)
    check_against_ledger(real_stack, answers)


async def test_on_the_fake_engine(fake_stack: Stack) -> None:
    """The answer is known here, so every character is checked."""
    answers = await run_all(fake_stack, "echo", 40)
    for i, answer in enumerate(answers):
        prompt = f"Count from {i} upwards, slowly."
        assert answer["text"] == (prompt * 3)[:40]
        assert answer["usage"]["completion_tokens"] == 40
    check_against_ledger(fake_stack, answers)


async def test_usage_sums_what_the_export_lists(fake_stack: Stack) -> None:
    """GET /v1/usage, the export and the ledger agree to the last digit."""
    from decimal import Decimal

    with fake_stack.client() as client:
        client.post("/v1/completions", json={"model": "echo", "prompt": "sum", "max_tokens": 5})
        page = client.get("/v1/usage").json()
    rows = [row for row in exported(fake_stack) if row["billable"]]
    results = [result for bucket in page["data"] for result in bucket["results"]]
    assert sum(r["output_tokens"] for r in results) == sum(row["output_tokens"] for row in rows)
    assert sum(r["num_model_requests"] for r in results) == len(rows)
    total = sum(Decimal(r["amount"]["value"]) for r in results)
    assert total == sum(Decimal(row["amount"]) for row in rows)
