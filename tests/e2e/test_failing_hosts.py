"""Hosts that can't start, die or hang: refused with a code, replaced, and told to the operator."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.hosts import PROMPT, ask, caller, config, hosts_of, stack_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("fault", ["told to fail", "MemoryError"])
async def test_a_model_that_can_t_start_is_refused_and_comes_back(
    tmp_path: Path, fault: str
) -> None:
    """The reason is for the operator: in the log, not in the answer."""
    flag = tmp_path / "fail"
    flag.touch()
    option = f'fail_file = "{flag}"' if fault == "told to fail" else "held_bytes = 1000000000000000"
    model = f'id = "echo"\nmemory_bytes = 1\noptions = {{ {option} }}'
    text = config(model, hosts="backoff_first_s = 0.05\nmax_failures = 3")
    with stack_of(tmp_path, text) as stack:
        async with caller(stack) as http, hosts_of(stack) as hosts:
            body = {"model": "echo", "prompt": PROMPT, "max_tokens": 3}
            for _ in range(2):  # the one that waits, and the next at once
                answer = await http.post("/v1/completions", json=body)
                assert answer.status_code == 503
                assert answer.json()["error"]["code"] == "model_failed"
                assert int(answer.headers["retry-after"]) > 0
                assert fault not in answer.text
                assert str(tmp_path) not in answer.text
            assert fault in (await hosts.model("echo"))["reason"]
            assert fault in stack.log.read_text()
            flag.unlink()
            if fault == "told to fail":
                await hosts.restart("echo")
                await ask(http)


async def test_a_request_survives_a_host_that_dies_while_it_starts(tmp_path: Path) -> None:
    text = config('id = "echo"\noptions = { start_s = 1 }', hosts="backoff_first_s = 0.05")
    with stack_of(tmp_path, text) as stack:
        async with caller(stack) as http, hosts_of(stack) as hosts:
            asked = asyncio.ensure_future(ask(http))
            for number in (1, 2):
                await hosts.until_count(1)
                stack.kill(hosts.pids()[0])
                async with asyncio.timeout(30):
                    while (await hosts.model("echo"))["failures"] < number:
                        await asyncio.sleep(0.02)
            assert await asked
            assert (await hosts.model("echo"))["reason"]


async def test_a_host_that_hangs_is_replaced_and_the_next_request_works(tmp_path: Path) -> None:
    model = 'id = "echo"\noptions = { step_s = 0.02 }'
    text = config(model, hosts="health_timeout_s = 0.5", relay="idle_s = 30")
    with stack_of(tmp_path, text) as stack:
        async with caller(stack) as http, hosts_of(stack) as hosts:
            body = {"model": "echo", "prompt": PROMPT, "max_tokens": 4000, "stream": True}
            async with http.stream("POST", "/v1/completions", json=body) as answer:
                chunks = answer.aiter_raw()
                await anext(chunks)
                os.kill(hosts.pids()[0], signal.SIGSTOP)
                began = time.monotonic()
                data = b"".join([chunk async for chunk in chunks])
            assert time.monotonic() - began < 25, "it isn't the request's own patience that ends it"
            assert b'"code":"upstream_error"' in data
            assert b"[DONE]" not in data
            await ask(http)
