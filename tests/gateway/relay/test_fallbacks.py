"""When a model's servers can't answer another model does: who is told, and what it costs."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.budgets.budgets import Plan, create
from gateway.budgets.spending import differences
from gateway.store.connection import open_for_writing
from gateway.store.reader import read
from tests.gateway.front import CHAT, USAGE, Gateway, gateway, stream_ok
from tests.runtime.upstream import Exchange

CONFIG = """
[relay]
connect_s = 5

[[models]]
id = "first"
engine = "openai"
kind = "vllm"
url = "http://127.0.0.1:9/v1"
fallback = ["second", "third"]
price = { input = "1", output = "1" }

[[models]]
id = "second"
engine = "openai"
kind = "vllm"
url = "{url}"
upstream_model = "two"
price = { input = "3", output = "5" }

[[models]]
id = "third"
engine = "openai"
kind = "vllm"
url = "{url}"
price = { input = "7", output = "7" }
"""
BODY = {"model": "first", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 10}
WHOLE = {
    "object": "chat.completion", "usage": USAGE,
    "choices": [{"index": 0, "message": {"content": "ho"}, "finish_reason": "stop"}],
}  # fmt: skip
BOTH = pytest.mark.parametrize("streamed", [False, True])


async def ok(exchange: Exchange) -> None:
    if exchange.json().get("stream"):
        await stream_ok(exchange)
    else:
        await exchange.reply_json(200, WHOLE)


async def only_third(exchange: Exchange) -> None:
    if exchange.json()["model"] == "third":
        await ok(exchange)
    else:
        await exchange.reply_json(500, {"error": {"message": "m"}})


async def post(given: Gateway, streamed: bool, **changes: Any) -> Any:
    return await given.http.post(CHAT, json=BODY | {"stream": streamed} | changes)


@BOTH
async def test_another_model_answers_says_so_and_is_billed_at_its_price(
    tmp_path: Path, streamed: bool
) -> None:
    async with gateway(tmp_path, ok, CONFIG) as found:
        got = await post(found, streamed)
        assert (got.status_code, got.headers["x-bulkhead-fallback"]) == (200, "second")
        assert '"model":"second"' in got.text
        assert found.server.asked[0].json()["model"] == "two"
        (row,) = found.rows()
        assert (row["model_id"], row["model_revision"]) == ("second", "two")
        assert (row["input_price_pico"], row["list_output_price_pico"]) == (3_000_000, 5_000_000)
        assert row["amount_pico"] == 7 * 3_000_000 + 2 * 5_000_000
        assert row["attempts"] == 2
        lines = read(
            found.env.database, lambda db: db.execute("SELECT sku_id FROM usage_line").fetchall()
        )
        assert {sku for (sku,) in lines} == {"second/input-tokens", "second/output-tokens"}
        (line,) = await found.requests(1)
        assert (line["model"], line["attempts"]) == ("second", 2)


@BOTH
async def test_the_next_one_is_asked_if_that_fails_too(tmp_path: Path, streamed: bool) -> None:
    async with gateway(tmp_path, only_third, CONFIG) as found:
        got = await post(found, streamed)
        assert (got.status_code, got.headers["x-bulkhead-fallback"]) == (200, "third")
        (row,) = found.rows()
        assert (row["model_id"], row["amount_pico"]) == ("third", 9 * 7_000_000)
        assert row["attempts"] == 3


async def test_if_none_can_the_last_failure_is_told(tmp_path: Path) -> None:
    async def fails(exchange: Exchange) -> None:
        await exchange.reply_json(500, {})

    async with gateway(tmp_path, fails, CONFIG) as found:
        got = await post(found, False)
        assert (got.status_code, got.json()["error"]["code"]) == (502, "upstream_error")
        (row,) = found.rows()
        assert (row["outcome"], row["billable"]) == ("upstream_error", 0)


async def test_what_the_request_itself_is_to_blame_for_falls_back_nowhere(tmp_path: Path) -> None:
    async def refuses(exchange: Exchange) -> None:
        await exchange.reply_json(400, {"error": {"code": "context_length_exceeded"}})

    config = CONFIG.replace("http://127.0.0.1:9/v1", "{url}")
    async with gateway(tmp_path, refuses, config) as found:
        got = await post(found, False)
        assert (got.status_code, len(found.server.asked)) == (400, 1)
        assert "x-bulkhead-fallback" not in got.headers


async def test_after_the_first_byte_no_other_model_answers(tmp_path: Path) -> None:
    async def cut(exchange: Exchange) -> None:
        await exchange.events({"choices": [{"delta": {"content": "a"}}]})

    config = CONFIG.replace("http://127.0.0.1:9/v1", "{url}")
    async with gateway(tmp_path, cut, config) as found:
        got = await post(found, True)
        assert '"code":"upstream_error"' in got.text
        assert "[DONE]" not in got.text
        assert len(found.server.asked) == 1


async def test_a_model_that_answers_has_no_such_header(tmp_path: Path) -> None:
    async with gateway(tmp_path, ok, CONFIG) as found:
        got = await post(found, False, model="second")
        assert "x-bulkhead-fallback" not in got.headers
        assert found.rows()[0]["attempts"] == 1


@BOTH
async def test_budgets_hold_and_spend_for_the_model_that_answers(
    tmp_path: Path, streamed: bool
) -> None:
    """What the first would have cost is let go; what the second does is spent where it counts."""
    async with gateway(tmp_path, ok, CONFIG) as found:
        tenant = read(
            found.env.database, lambda db: db.execute("SELECT id FROM tenant").fetchone()
        )[0]
        plan = Plan(tenant, "tenant", tenant, "total", "USD", limit_nano=10**9)
        with closing(open_for_writing(found.env.database)) as db:
            for model in ("", "first", "second"):
                create(db, replace(plan, model_id=model), 0)
        assert (await post(found, streamed)).status_code == 200
        windows = read(
            found.env.database,
            lambda db: db.execute(
                "SELECT model_id, spent_nano, held_nano FROM budget_window JOIN budget"
                " ON budget.id = budget_id ORDER BY model_id"
            ).fetchall(),
        )
        spent = (7 * 3_000_000 + 2 * 5_000_000) // 1000
        assert windows == [("", spent, 0), ("first", 0, 0), ("second", spent, 0)]
        assert read(found.env.database, differences) == []


async def test_a_fallback_that_does_not_fit_into_a_budget_is_passed_over(tmp_path: Path) -> None:
    async with gateway(tmp_path, ok, CONFIG) as found:
        tenant = read(
            found.env.database, lambda db: db.execute("SELECT id FROM tenant").fetchone()
        )[0]
        plan = Plan(tenant, "tenant", tenant, "total", "USD", limit_nano=1, model_id="second")
        with closing(open_for_writing(found.env.database)) as db:
            create(db, plan, 0)
        got = await post(found, False)
        assert got.headers["x-bulkhead-fallback"] == "third"
        assert found.rows()[0]["model_id"] == "third"
        assert read(found.env.database, differences) == []
