"""Limits on the request's way, over real HTTP: who is refused, what is told, what is given back."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from pathlib import Path

import pytest

from gateway.budgets.bounds import TEMPLATE_TOKENS, TURN_TOKENS
from gateway.limits.gate import Gate
from gateway.limits.limit import Kind, Limit, Take
from gateway.store.connection import open_for_writing
from gateway.store.limit_rules import Rule, Scope, clear_rule, set_rule
from tests.gateway.front import (
    BODY,
    CHAT,
    DONE,
    MODEL,
    ONE_MODEL,
    USAGE,
    Gateway,
    gateway,
    stream_ok,
    text,
)
from tests.runtime.upstream import Answer, Exchange

STREAM = BODY | {"stream": True, "max_tokens": 100}
BOUND = len("canary-prompt") + TURN_TOKENS + TEMPLATE_TOKENS + 100


def limited(**rates: int) -> str:
    said = "\n".join(f"{name} = {number}" for name, number in rates.items())
    return f"[limits.per_tenant]\n{said}\n{ONE_MODEL}"


def gate_of(found: Gateway) -> Gate:
    return found.env.admission._gate


def tenant_id_of(found: Gateway) -> str:
    acme = found.env.directory.tenant("acme")
    assert acme is not None
    return acme.tenant_id


async def level(found: Gateway, kind: Kind, number: int) -> int:
    """Of acme's limit, as it is now."""
    limit = Limit(f"tenant:{tenant_id_of(found)}::{kind.value}", kind, number)
    return (await gate_of(found).look([Take(limit, 0)])).levels[0]


async def test_the_one_too_many_is_429_and_touches_nothing(tmp_path: Path) -> None:
    async with gateway(tmp_path, stream_ok, limited(rpm=2, tpm=100_000)) as gate:
        for left in (1, 0):
            answer = await gate.http.post(CHAT, json=STREAM)
            assert answer.status_code == 200
            assert answer.headers["x-ratelimit-limit-requests"] == "2"
            assert answer.headers["x-ratelimit-remaining-requests"] == str(left)
        assert answer.headers["x-ratelimit-limit-tokens"] == "100000"
        assert 99_000 < int(answer.headers["x-ratelimit-remaining-tokens"]) < 100_000
        assert answer.headers["x-ratelimit-reset-requests"].endswith("s")
        assert answer.headers["ratelimit-policy"] == (
            '"rpm";q=2;w=60, "tpm";q=100000;w=60;qu="tokens"'
        )
        assert answer.headers["ratelimit"].startswith('"rpm";r=0;t=')
        refused = await gate.http.post(CHAT, json=STREAM)
        assert refused.status_code == 429
        error = refused.json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        assert "the tenant's limit of 2 requests a minute" in error["message"]
        assert 1 <= int(refused.headers["retry-after"]) <= 30
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert len(gate.rows()) == len(gate.server.asked) == 2
        assert [line.get("limit") for line in await gate.requests(3)] == [None, None, "tenant rpm"]
        assert len(gate_of(gate)) == 0


async def test_without_limits_nothing_is_told(tmp_path: Path) -> None:
    async with gateway(tmp_path, stream_ok) as gate:
        answer = await gate.http.post(CHAT, json=STREAM)
        assert answer.status_code == 200
        assert not [name for name in answer.headers if "ratelimit" in name]


async def test_what_could_never_come_is_refused_at_once(tmp_path: Path) -> None:
    async with gateway(tmp_path, stream_ok, limited(tpm=BOUND - 1)) as gate:
        answer = await gate.http.post(CHAT, json=STREAM)
        assert (answer.status_code, answer.json()["error"]["code"]) == (
            400,
            "request_exceeds_limit",
        )
        assert f"may take {BOUND} tokens" in answer.json()["error"]["message"]
        assert "retry-after" not in answer.headers
        assert (await gate.http.post(CHAT, json=STREAM | {"max_tokens": 99})).status_code == 200


async def refuses(exchange: Exchange) -> None:
    await exchange.reply_json(
        400, {"error": {"code": "context_length_exceeded", "message": "long"}}
    )


async def fails(exchange: Exchange) -> None:
    await exchange.reply_json(500, {"error": {"message": "broken"}})


async def breaks_off(exchange: Exchange) -> None:
    await exchange.events(text("h"), text("o"), end=True)


@pytest.mark.parametrize(
    ("answer", "streamed", "counts"),
    [
        (refuses, True, 0),
        (refuses, False, 0),
        (fails, True, 0),
        (fails, False, 0),
        (breaks_off, True, 1),
    ],
)
async def test_what_an_ending_gives_back(
    tmp_path: Path, answer: Answer, streamed: bool, counts: int
) -> None:
    async with gateway(tmp_path, answer, limited(rpm=2, tpm=1000, concurrent=1)) as gate:
        failed = await gate.http.post(CHAT, json=STREAM | {"stream": streamed})
        assert failed.status_code in (200, 400, 502)
        await gate.requests(1)
        (row,) = gate.rows()
        spent = (row["input_tokens"] or 0) + (row["output_tokens"] or 0)
        assert 0 <= spent * 60_000 - await level(gate, Kind.TOKENS, 1000) < 1_000_000 * 2
        assert (await level(gate, Kind.REQUESTS, 2) > 0) == bool(counts)
        assert await level(gate, Kind.CONCURRENT, 1) == 0


async def test_the_debit_is_the_ledgers_tokens(tmp_path: Path) -> None:
    async with gateway(tmp_path, stream_ok, limited(tpm=1000)) as gate:
        begun = time.monotonic()
        for body in (STREAM, STREAM, STREAM):
            assert (await gate.http.post(CHAT, json=body)).status_code == 200
        rows = gate.rows()
        spent = sum(row["input_tokens"] + row["output_tokens"] for row in rows)
        assert spent == 3 * USAGE["total_tokens"]
        refilled = spent * 60_000 - await level(gate, Kind.TOKENS, 1000)
        assert 0 <= refilled <= (time.monotonic() - begun) * 1e6


async def test_an_unknown_usage_stays_what_was_reserved(tmp_path: Path) -> None:
    async def silent(exchange: Exchange) -> None:
        await exchange.events(text("h"), text("o", "stop"), DONE)

    async with gateway(tmp_path, silent, limited(tpm=1000)) as gate:
        assert (await gate.http.post(CHAT, json=STREAM)).status_code == 200
        assert gate.rows()[0]["input_tokens"] is None
        assert await level(gate, Kind.TOKENS, 1000) > (BOUND - 50) * 60_000


async def test_a_stream_has_its_place_until_its_end_and_not_longer(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def held(exchange: Exchange) -> None:
        await exchange.events(text("h"), end=False)
        await go_on.wait()
        await exchange.gone()

    async with gateway(tmp_path, held, limited(concurrent=1)) as gate:
        async with gate.http.stream("POST", CHAT, json=STREAM) as running:
            assert running.status_code == 200
            refused = await gate.http.post(CHAT, json=STREAM)
            assert refused.status_code == 429
            assert "1 request at once" in refused.json()["error"]["message"]
            assert refused.headers["ratelimit"] == '"concurrent";r=0'
        await gate.requests(2)
        go_on.set()
        assert (len(gate_of(gate)), await level(gate, Kind.CONCURRENT, 1)) == (0, 0)


async def test_the_next_request_has_the_place_of_the_one_before(tmp_path: Path) -> None:
    """It's free before the end of the answer leaves: who asks one by one is never refused."""
    async with gateway(tmp_path, stream_ok, limited(concurrent=1)) as gate:
        for _ in range(50):
            assert (await gate.http.post(CHAT, json=STREAM)).status_code == 200


@pytest.mark.parametrize("rates", [{"rpm": 1}, {"concurrent": 1}, {"tpm": BOUND}])
async def test_of_200_at_once_one_comes_at_a_limit_for_one(
    tmp_path: Path, rates: dict[str, int]
) -> None:
    """Also the first ones of a tenant that nobody has seen yet."""
    release = asyncio.Event()

    async def held(exchange: Exchange) -> None:
        await release.wait()
        await stream_ok(exchange)

    async with gateway(tmp_path, held, limited(**rates)) as gate:
        all_ = [asyncio.ensure_future(gate.http.post(CHAT, json=STREAM)) for _ in range(200)]
        async with asyncio.timeout(60):
            while sum(one.done() for one in all_) < 199:
                await asyncio.sleep(0.01)
        release.set()
        statuses = sorted([answer.status_code for answer in await asyncio.gather(*all_)])
        assert statuses == [200] + [429] * 199
        assert len(gate.rows()) == 1


async def test_a_model_has_limits_for_all_together_which_nobody_can_watch(tmp_path: Path) -> None:
    config = ONE_MODEL + "limits = { rpm = 2 }\n"
    async with gateway(tmp_path, stream_ok, config, ("acme", "beta")) as gate:
        first = await gate.http.post(CHAT, json=STREAM)
        other = await gate.http.post(CHAT, json=STREAM, headers=gate.bearer("beta"))
        assert (first.status_code, other.status_code) == (200, 200)
        assert not [name for name in other.headers if "ratelimit" in name]
        refused = await gate.http.post(CHAT, json=STREAM)
        assert refused.status_code == 429
        assert "the model's limit of 2 requests a minute" in refused.json()["error"]["message"]


async def test_what_the_store_says_counts_at_once_and_in_place_of_the_config(
    tmp_path: Path,
) -> None:
    async with gateway(tmp_path, stream_ok, limited(rpm=2)) as gate:
        tenant_id = tenant_id_of(gate)
        scope, at_model = Scope("tenant", tenant_id), Scope("tenant", tenant_id, MODEL)
        with closing(open_for_writing(gate.env.database)) as db:
            set_rule(db, scope, Rule(tpm=50_000), 1)
            set_rule(db, scope, Rule(rpm=9), 2)
            set_rule(db, at_model, Rule(rpm=5), 3)
        async with asyncio.timeout(30):
            while gate.env.directory.limit_rules.get(at_model) is None:
                await asyncio.sleep(0.01)
        answer = await gate.http.post(CHAT, json=STREAM)
        assert answer.headers["x-ratelimit-limit-requests"] == "5"
        assert answer.headers["x-ratelimit-limit-tokens"] == "50000"
        with closing(open_for_writing(gate.env.database)) as db:
            assert clear_rule(db, scope)
            assert clear_rule(db, at_model)
            assert not clear_rule(db, scope)
        async with asyncio.timeout(30):
            while gate.env.directory.limit_rules:
                await asyncio.sleep(0.01)
        answer = await gate.http.post(CHAT, json=STREAM)
        assert answer.headers["x-ratelimit-limit-requests"] == "2"
        assert "x-ratelimit-limit-tokens" not in answer.headers


async def test_a_caller_is_told_its_own_limits_and_that_takes_nothing(tmp_path: Path) -> None:
    config = (
        limited(rpm=2, concurrent=3)
        + "limits = { rpm = 9 }\n"
        + f'[[tenants]]\nname = "acme"\nlimits = [{{ model = "{MODEL}", tpm = 1000 }}]\n'
    )
    async with gateway(tmp_path, stream_ok, config) as gate:
        await gate.http.post(CHAT, json=STREAM)
        for _ in range(2):
            body = (await gate.http.get("/v1/limits")).json()
            assert body["object"] == "list"
            rpm, concurrent, tpm = body["data"]
            assert (rpm["scope"], rpm["model"], rpm["kind"]) == ("tenant", None, "rpm")
            assert (rpm["limit"], rpm["remaining"]) == (2, 1)
            assert 1 <= rpm["reset"] <= 30
            assert (concurrent["kind"], concurrent["remaining"]) == ("concurrent", 3)
            assert concurrent["reset"] is None
            assert (tpm["model"], tpm["limit"]) == (MODEL, 1000)
            assert tpm["remaining"] >= 1000 - USAGE["total_tokens"]
