"""A client that leaves an attached server's answer: one row, with what it was handed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.gateway.front import BODY, CHAT, Gateway, gateway, text
from tests.runtime.upstream import Exchange


async def closed_row(found: Gateway) -> dict[str, object]:
    async with asyncio.timeout(30):
        while not (rows := found.rows()) or rows[0]["state"] == "open":
            await asyncio.sleep(0.01)
    (row,) = rows
    return row


async def leave_after(found: Gateway, pieces: int) -> None:
    async with found.http.stream("POST", CHAT, json=BODY | {"stream": True}) as answer:
        seen = 0
        async for chunk in answer.aiter_bytes():
            seen += chunk.count(b"data:")
            if seen >= pieces:
                return


@pytest.mark.parametrize("running", [False, True])
async def test_a_stream_that_is_dropped_has_its_tokens_in_the_ledger(
    tmp_path: Path, running: bool
) -> None:
    """litellm#14457. Where the server counts along, the prompt's too."""
    left = asyncio.Event()

    async def endless(exchange: Exchange) -> None:
        await exchange.events(end=False)
        for n in range(1, 4):
            usage = {"prompt_tokens": 7, "completion_tokens": n, "total_tokens": 7 + n}
            await exchange.event(text("x") | ({"usage": usage} if running else {}))
        await exchange.gone()
        left.set()

    async with gateway(tmp_path, endless) as found:
        await leave_after(found, 3)
        row = await closed_row(found)
        await asyncio.wait_for(left.wait(), 30)
        assert (row["outcome"], row["billable"], row["output_tokens"]) == ("client_cancelled", 1, 3)
        told = (row["input_tokens"], row["usage_source"])
        assert told == ((7, "upstream_running") if running else (0, "gateway_count"))


async def test_an_unstreamed_call_that_is_dropped_has_a_row_and_stops_the_server(
    tmp_path: Path,
) -> None:
    """litellm#13245."""
    asked, left = asyncio.Event(), asyncio.Event()

    async def silent(exchange: Exchange) -> None:
        asked.set()
        await exchange.gone()
        left.set()

    async with gateway(tmp_path, silent) as found:
        call = asyncio.ensure_future(found.http.post(CHAT, json=BODY))
        await asyncio.wait_for(asked.wait(), 30)
        call.cancel()
        await asyncio.wait([call])
        row = await closed_row(found)
        await asyncio.wait_for(left.wait(), 30)
        assert (row["outcome"], row["billable"]) == ("client_cancelled", 0)


async def test_a_stream_that_is_cut_is_no_clean_end(tmp_path: Path) -> None:
    """Portkey#1797, TensorZero and SMG: an error event, and no [DONE] after it."""

    async def cut(exchange: Exchange) -> None:
        await exchange.events(text("x"), end=False)
        exchange.reset()

    async with gateway(tmp_path, cut) as found:
        got = await found.http.post(CHAT, json=BODY | {"stream": True})
        assert '"code":"upstream_error"' in got.text
        assert "[DONE]" not in got.text
        assert (await closed_row(found))["outcome"] == "upstream_error"


async def test_comments_come_while_a_stream_waits_and_none_before_a_json_answer(
    tmp_path: Path,
) -> None:
    """litellm#34374: what was silent for a minute was cut by what stood between."""
    go_on = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        await go_on.wait()
        await exchange.events(text("x", "stop"), b"data: [DONE]\n\n")

    config = (
        "[relay]\nkeep_alive_s = 0.05\n"
        '[[models]]\nid = "@cf/there"\nengine = "openai"\nkind = "vllm"\nmax_in_flight = 1\n'
        'url = "{url}"\n'
    )
    async with gateway(tmp_path, slow, config) as found:
        calls = [
            asyncio.ensure_future(found.http.post(CHAT, json=BODY | {"stream": True}))
            for _ in range(2)  # one is prefilled, one waits in the line
        ]
        await asyncio.sleep(0.5)
        go_on.set()
        for got in await asyncio.gather(*calls):
            assert got.text.startswith(": keep-alive\n\n")
            assert got.text.endswith("data: [DONE]\n\n")
