"""The table of docs/billing.md, row by row, through a gateway over real HTTP and a scripted server.

What needs an engine of ours is tried with one: exact counts of cut streams in `e2e/test_cancel.py`,
failed page checks in `e2e/test_integrity.py`, kills in `e2e/test_kill.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.money.reconcile import differences
from gateway.store.reader import read
from tests.gateway.front import BODY, CHAT, DONE, Gateway, gateway, text
from tests.runtime.upstream import Exchange

INPUT, CACHED, OUTPUT = 1_000_000, 100_000, 10_000_000  # pico-units a token
CONFIG = """
[relay]
connect_s = 5
[limits]
wall_s = {wall_s}
[[models]]
id = "@cf/there"
engine = "openai"
kind = "vllm"
url = "{{url}}"
[models.price]
input = "1"
cached_input = "0.1"
output = "10"
"""
ASKED = BODY | {"max_tokens": 5}
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
CACHED_USAGE = USAGE | {"prompt_tokens_details": {"cached_tokens": 4}}
ZERO = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
MOST_INPUT = len("canary-prompt") + 16 + 256  # its bytes, a message, a chat template
MOST_OUTPUT = 5  # max_tokens
TOO_MUCH = {"prompt_tokens": 10**6, "completion_tokens": 10**6, "total_tokens": 2 * 10**6}
ERROR_TEXT = "an error that is as long as an answer of a great many tokens would be " * 20

Leave = Callable[[Gateway], Awaitable[None]]


def whole(finish: str = "stop", usage: dict[str, Any] | None = None) -> dict[str, Any]:
    choice = {"index": 0, "message": {"content": "ho"}, "finish_reason": finish}
    return {"object": "chat.completion", "choices": [choice]} | ({"usage": usage} if usage else {})


def ends(finish: str = "stop", usage: dict[str, Any] | None = USAGE) -> Any:
    """Answers with one token and then another, and with this usage."""

    async def answer(exchange: Exchange) -> None:
        if not exchange.json().get("stream"):
            await exchange.reply_json(200, whole(finish, usage))
            return
        told = [] if usage is None else [{"choices": [], "usage": usage}]
        await exchange.events(text("h"), text("o", finish), *told, DONE)

    return answer


async def silent(exchange: Exchange) -> None:
    await exchange.gone()


async def one_token(exchange: Exchange) -> None:
    await exchange.events(text("h"), end=False)
    await exchange.gone()


async def counts_along(exchange: Exchange) -> None:
    assert exchange.json()["stream_options"]["continuous_usage_stats"] is True
    so_far = CACHED_USAGE | {"completion_tokens": 2}
    await exchange.events(text("ho") | {"usage": so_far}, end=False)
    await exchange.gone()


async def claims_along(exchange: Exchange) -> None:
    await exchange.events(text("ho") | {"usage": TOO_MUCH}, end=False)
    await exchange.gone()


async def breaks_off(exchange: Exchange) -> None:
    await exchange.events(text("h"), text("o"), end=False)
    exchange.close()


async def error_event(exchange: Exchange) -> None:
    await exchange.events(text("h"), {"error": {"message": ERROR_TEXT}})


def refuses(status: int) -> Any:
    async def answer(exchange: Exchange) -> None:
        await exchange.reply_json(status, {"error": {"message": ERROR_TEXT, "type": "x"}})

    return answer


@dataclass(frozen=True)
class Case:
    """What the server does, whether the client leaves, and what is on record then."""

    answer: Any
    outcome: str
    reason: str
    billed: int = 0  # pico-units
    tokens: tuple[int | None, int | None, int | None] | None = (None, None, None)
    source: str = "none"
    leaves_after: int | None = None  # so many bytes
    wall_s: float = 3600
    streams: tuple[bool, ...] = (True, False)
    claimed: tuple[int | None, int | None] = (None, None)


FULL = 7 * INPUT + 2 * OUTPUT
MOST = MOST_INPUT * INPUT + MOST_OUTPUT * OUTPUT
MOST_TOKENS = (MOST_INPUT, 0, MOST_OUTPUT)
CLAIMED = (10**6, 10**6)
CASES = {
    "completed": Case(ends(), "completed", "full_answer", FULL, (7, 0, 2), "upstream_final"),
    "length": Case(ends("length"), "length", "full_answer", FULL, (7, 0, 2), "upstream_final"),
    "cached input has its own price": Case(
        ends(usage=CACHED_USAGE), "completed", "full_answer",
        3 * INPUT + 4 * CACHED + 2 * OUTPUT, (7, 4, 2), "upstream_final",
    ),
    "explicit zero": Case(
        ends(usage=ZERO), "completed", "full_answer", 0, (0, 0, 0), "upstream_final"
    ),
    "missing usage": Case(ends(usage=None), "completed", "usage_missing"),
    "a claim beyond what could be used": Case(
        ends(usage=TOO_MUCH), "completed", "full_answer", MOST, MOST_TOKENS, "upstream_final",
        claimed=CLAIMED,
    ),
    "a claim of more output alone": Case(
        ends(usage=USAGE | {"completion_tokens": 6}), "completed", "full_answer",
        7 * INPUT + MOST_OUTPUT * OUTPUT, (7, 0, MOST_OUTPUT), "upstream_final", claimed=(7, 6),
    ),
    "a claim of more cached input alone": Case(
        ends(usage=TOO_MUCH | {"prompt_tokens_details": {"cached_tokens": 10**5}}),
        "completed", "full_answer", MOST_INPUT * CACHED + MOST_OUTPUT * OUTPUT,
        (MOST_INPUT, MOST_INPUT, MOST_OUTPUT), "upstream_final", claimed=CLAIMED,
    ),
    "such a claim along a stream that is left": Case(
        claims_along, "client_cancelled", "delivered_part", MOST, MOST_TOKENS, "upstream_running",
        leaves_after=1, streams=(True,), claimed=CLAIMED,
    ),
    "the client leaves before the first token": Case(
        silent, "client_cancelled", "nothing_delivered", leaves_after=0
    ),
    "the client leaves in mid-stream": Case(
        one_token, "client_cancelled", "delivered_part", OUTPUT, (0, 0, 1), "gateway_count",
        leaves_after=1, streams=(True,),
    ),
    "the client leaves in mid-stream of a server that counts along": Case(
        counts_along, "client_cancelled", "delivered_part",
        3 * INPUT + 4 * CACHED + 2 * OUTPUT, (7, 4, 2), "upstream_running",
        leaves_after=1, streams=(True,),
    ),
    "an error before the first token": Case(refuses(500), "upstream_error", "upstream_error"),
    "an error in mid-stream": Case(
        breaks_off, "upstream_error", "upstream_error", tokens=None, streams=(True,)
    ),
    "an error's text is no answer": Case(
        error_event, "upstream_error", "upstream_error", tokens=None, streams=(True,)
    ),
    "refused": Case(refuses(400), "refused", "refused"),
    "too slow": Case(silent, "timeout", "timeout", wall_s=0.5),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "stream"), [(name, s) for name, case in CASES.items() for s in case.streams]
)
async def test_the_policy(tmp_path: Path, name: str, stream: bool) -> None:
    case = CASES[name]
    async with gateway(tmp_path, case.answer, CONFIG.format(wall_s=case.wall_s)) as found:
        if case.leaves_after is None:
            await found.http.post(CHAT, json=ASKED | {"stream": stream})
        else:
            await leave(found, stream, case.leaves_after)
        (line,) = await found.requests(1)
        (row,) = found.rows()
        assert (row["claimed_input_tokens"], row["claimed_output_tokens"]) == case.claimed
        assert line.get("claimed_output_tokens") == case.claimed[1]
        warned = [one for one in found.log if one["event"] == "usage_over_bound"]
        assert len(warned) == (case.claimed[1] is not None)
        assert (row["outcome"], row["bill_reason"]) == (case.outcome, case.reason)
        assert row["amount_pico"] == row["list_amount_pico"] == case.billed
        assert bool(row["billable"]) == (case.reason in ("full_answer", "delivered_part"))
        tokens = (row["input_tokens"], row["cached_input_tokens"], row["output_tokens"])
        if case.tokens is None:  # what was handed over before it is a matter of time
            assert (tokens[2] or 0) <= 2
        else:
            assert (tokens, row["usage_source"]) == (case.tokens, case.source)
        assert read(found.env.database, lambda db: list(differences(db))) == []


async def leave(found: Gateway, stream: bool, after: int) -> None:
    """Ask, and close the connection after so many bytes of the answer's body."""

    async def ask() -> None:
        async with found.http.stream("POST", CHAT, json=ASKED | {"stream": stream}) as answer:
            async for _ in answer.aiter_raw():
                return

    asking = asyncio.ensure_future(ask())
    if after:
        await asking
        return
    async with asyncio.timeout(20):
        while not found.server.asked:
            await asyncio.sleep(0.005)
    asking.cancel()
    await asyncio.wait({asking})
