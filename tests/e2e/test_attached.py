"""Servers attached by URL that misbehave: what the client sees, and what is billed."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from tests.e2e.ledger import row_of
from tests.runtime.upstream import Exchange, upstream
from tests.stack import Stack, running

CONFIG = """
[[models]]
id = "theirs"
engine = "openai"
cache = "salted"
url = "{url}/v1"
price = {{ input = "1", output = "1" }}
"""


def chunk(text: str, finish: str | None = None) -> dict[str, object]:
    return {"id": "x", "object": "text_completion", "created": 1,
            "choices": [{"index": 0, "text": text, "finish_reason": finish}]}  # fmt: skip


@asynccontextmanager
async def attached(folder: Path, answer: object) -> AsyncIterator[tuple[Stack, httpx.AsyncClient]]:
    """A stack whose only model is a scripted server in this process."""
    async with upstream(answer) as server:  # type: ignore[arg-type]
        with running(folder, CONFIG.format(url=server.url)) as stack:
            headers = {"authorization": f"Bearer {stack.key}"}
            async with httpx.AsyncClient(base_url=stack.url, headers=headers, timeout=20) as client:
                yield stack, client


BODY = {"model": "theirs", "prompt": "hi", "stream": True}


async def test_an_ended_answer_without_usage_is_not_billed(tmp_path: Path) -> None:
    """Missing is not zero, and never guessed: whole or streamed, the row says usage_missing."""

    async def answer(call: Exchange) -> None:
        if call.json().get("stream"):
            await call.events(chunk("a"), chunk("b", "stop"), b"data: [DONE]\n\n")
        else:
            await call.reply_json(200, chunk("ab", "stop"))

    async with attached(tmp_path, answer) as (stack, client):
        for stream in (True, False):
            got = await client.post("/v1/completions", json=BODY | {"stream": stream})
            assert got.status_code == 200
            row = row_of(stack, got.headers["x-request-id"])
            assert (row["outcome"], row["billable"]) == ("completed", False)
            assert (row["bill_reason"], row["usage_source"]) == ("usage_missing", "none")


async def test_a_cut_stream_is_visible_and_free(tmp_path: Path) -> None:
    """No [DONE] from the server is an error event and no [DONE] from us."""

    async def answer(call: Exchange) -> None:
        await call.events(chunk("a"), chunk("b"))

    async with attached(tmp_path, answer) as (stack, client):
        got = await client.post("/v1/completions", json=BODY)
        assert '"code":"upstream_error"' in got.text
        assert "[DONE]" not in got.text
        row = row_of(stack, got.headers["x-request-id"])
        assert (row["outcome"], row["billable"]) == ("upstream_error", False)


async def test_what_a_server_refuses_is_logged_without_its_text(tmp_path: Path) -> None:
    """The operator sees status and code; the client gets a sentence; neither sees the other's."""

    async def answer(call: Exchange) -> None:
        await call.reply_json(401, {"error": {"message": "canary-9", "code": "bad_key"}})

    async with attached(tmp_path, answer) as (stack, client):
        got = await client.post("/v1/completions", json=BODY)
        assert (got.status_code, got.json()["error"]["code"]) == (502, "upstream_error")
        assert "canary" not in got.text
        log = stack.log.read_text()
        assert '"event":"upstream_refused"' in log
        assert '"status":401' in log
        assert "canary" not in log


async def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    """503 with Retry-After, and nothing of the address."""
    with running(tmp_path, CONFIG.format(url="http://127.0.0.1:9")) as stack, stack.client() as c:
        got = c.post("/v1/completions", json=BODY)
        assert got.status_code == 503
        assert int(got.headers["retry-after"]) > 0
        assert "127.0.0.1" not in got.text
        assert c.post("/v1/completions", json=BODY).status_code == 503
        log = stack.log.read_text()
        assert log.count('"event":"attached_server_down"') == 1, "not for each request"
        (model,) = json.loads(stack.cli("hosts", "list", "--json"))["models"]
        assert (model["state"], model["is_down"]) == ("attached", True)
        assert "refused" in model["reason"].lower()
        assert "Connection refused (" in stack.cli("hosts", "list")
        assert 0 <= time.time() - model["failed_at"] < 120
    assert "Traceback" not in stack.log.read_text(), "a stop without hosts is as quiet as any"
