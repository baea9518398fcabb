"""Requests that wait for a host: kept alive, bounded, out of the line with their client."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.e2e.hosts import PROMPT, caller, config, hosts_of, stack_of
from tests.e2e.ledger import records
from tests.stack import Stack

pytestmark = pytest.mark.slow

SLOW = 'id = "echo"\nmax_waiting = 2\noptions = { start_s = 2 }'


async def test_a_stream_that_waits_for_its_host_is_kept_alive(tmp_path: Path) -> None:
    with stack_of(tmp_path, config(SLOW, relay="keep_alive_s = 0.3")) as stack:
        async with caller(stack) as http:
            body = {"model": "echo", "prompt": PROMPT, "max_tokens": 3, "stream": True}
            answer = await http.post("/v1/completions", json=body)
            before, _, after = answer.text.partition("data: ")
            assert before.count(": keep-alive\n\n") >= 2
            assert after.endswith("data: [DONE]\n\n")


async def test_a_client_that_leaves_while_it_waits_leaves_the_line(tmp_path: Path) -> None:
    with stack_of(tmp_path, config(SLOW, relay="keep_alive_s = 0.3")) as stack:
        async with caller(stack) as http, hosts_of(stack) as hosts:
            body = {"model": "echo", "prompt": PROMPT, "max_tokens": 3, "stream": True}
            for _ in range(4):  # twice as many as may wait at a time
                async with http.stream("POST", "/v1/completions", json=body) as answer:
                    assert await anext(answer.aiter_raw()) == b": keep-alive\n\n"
                    assert (await hosts.model("echo"))["state"] == "starting"
                await until_settled(stack)
                await hosts.restart("echo")
            assert {row["outcome"] for row in records(stack)} == {"client_cancelled"}


async def until_settled(stack: Stack) -> None:
    async with asyncio.timeout(20):
        while any(row["state"] != "settled" for row in records(stack)):
            await asyncio.sleep(0.02)


async def test_no_more_wait_than_may(tmp_path: Path) -> None:
    with stack_of(tmp_path, config(SLOW)) as stack:
        async with caller(stack) as http:
            body = {"model": "echo", "prompt": PROMPT, "max_tokens": 3}
            answers = await asyncio.gather(
                *(http.post("/v1/completions", json=body) for _ in range(6))
            )
            refused = [answer for answer in answers if answer.status_code != 200]
            assert len(refused) == 4
            for answer in refused:
                assert answer.status_code == 503
                assert answer.json()["error"]["code"] == "queue_full"
                assert int(answer.headers["retry-after"]) > 0
