"""Budgets over HTTP, an attached server behind: what it is sent, what a client is told and sees."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gateway.budgets.budgets import Plan, create
from gateway.identity.tenants import tenant_id_of
from gateway.store.connection import open_for_writing, transaction
from tests.gateway.front import BODY, CHAT, MODEL, ONE_MODEL, Gateway, gateway, stream_ok
from tests.runtime.upstream import Exchange

PRICED = f"""{ONE_MODEL}
price = {{ input = "1", cached_input = "1", output = "1" }}
"""
INPUT = len("canary-prompt") + 16 + 256  # tokens at most, a micro-unit each: 1000 nano


async def whole(exchange: Exchange) -> None:
    message = {"role": "assistant", "content": "ho"}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
    await exchange.reply_json(200, {"choices": choices, "usage": usage})


def make(gate: Gateway, tokens: int, tenant: str = "acme", **changes: Any) -> str:
    """A budget of so many tokens; its id."""
    with closing(open_for_writing(gate.env.database)) as db, transaction(db):
        id_ = tenant_id_of(db, tenant)
        given = {"scope_kind": "tenant", "scope_id": id_, "currency": "USD", "period": "total"}
        plan = Plan(tenant_id=id_, limit_nano=tokens * 1000, **(given | changes))
        return create(db, plan, gate.env.clock.now_us()).budget.id


async def test_the_engine_is_sent_what_the_budget_allows(tmp_path: Path) -> None:
    async with gateway(tmp_path, stream_ok, PRICED) as gate:
        make(gate, INPUT + 40)
        answer = await gate.http.post(CHAT, json=BODY | {"stream": True})
        assert answer.headers["x-bulkhead-max-tokens"] == "40"
        assert gate.server.asked[-1].json()["max_tokens"] == 40
        gate.server.answer = whole
        answer = await gate.http.post(CHAT, json=BODY)  # 9 tokens were spent
        assert answer.headers["x-bulkhead-max-tokens"] == "31"
        assert gate.server.asked[-1].json()["max_tokens"] == 31


async def test_a_limit_of_the_clients_own_is_kept_or_refused(tmp_path: Path) -> None:
    async with gateway(tmp_path, whole, PRICED) as gate:
        make(gate, INPUT + 40)
        refused = await gate.http.post(CHAT, json=BODY | {"max_tokens": 41})
        assert refused.status_code == 429
        assert "max_tokens of at most 40 it fits" in refused.json()["error"]["message"]
        assert gate.server.asked == []
        answer = await gate.http.post(CHAT, json=BODY | {"max_tokens": 40})
        assert answer.status_code == 200
        assert "x-bulkhead-max-tokens" not in answer.headers


async def test_a_model_in_another_currency_is_refused(tmp_path: Path) -> None:
    async with gateway(tmp_path, whole, PRICED) as gate:
        make(gate, 10**6, currency="EUR")
        refused = await gate.http.post(CHAT, json=BODY)
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (403, "currency_not_budgeted")
        assert gate.server.asked == []


async def test_each_caller_is_told_of_its_own(tmp_path: Path) -> None:
    async with gateway(tmp_path, whole, PRICED, tenants=("acme", "globex")) as gate:
        me = (await gate.http.get("/v1/whoami")).json()["key"]["id"]
        mine = {make(gate, 100), make(gate, 50, scope_kind="key", scope_id=me, model_id=MODEL)}
        make(gate, 10, "globex")
        told = (await gate.http.get("/v1/budgets")).json()
        assert told["object"] == "list"
        assert {one["id"] for one in told["data"]} == mine
        by_model = {one["model"]: one for one in told["data"]}
        assert by_model[MODEL]["scope"] == {"kind": "key", "id": me}
        assert by_model[MODEL]["limit"] == "0.00005"
        assert by_model[None]["window"]["left"] == "0.0001"
        theirs = await gate.http.get("/v1/budgets", headers=gate.bearer("globex"))
        assert len(theirs.json()["data"]) == 1
        assert not mine & {one["id"] for one in theirs.json()["data"]}


@pytest.mark.parametrize("query", ["?tenant=globex", "?x="])
async def test_it_takes_no_parameter(tmp_path: Path, query: str) -> None:
    async with gateway(tmp_path, whole) as gate:
        assert (await gate.http.get(f"/v1/budgets{query}")).status_code == 400
