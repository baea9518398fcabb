"""The `/v1` routes over a real server and store, an upstream scripted behind them."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from gateway import v1
from gateway.asgi import Call
from gateway.env import Env
from gateway.identity.keys import hint
from gateway.store.errors import StoreUnavailable
from tests.gateway.front import BODY, CHAT, DONE, USAGE, gateway, stream_ok, text
from tests.runtime.upstream import Exchange


async def test_a_stream_is_passed_on_settled_and_logged_once(tmp_path: Path) -> None:
    async with gateway(tmp_path, stream_ok) as gate:
        answer = await gate.http.post(CHAT, json=BODY | {"stream": True})
        assert answer.content.endswith(DONE)
        assert b"usage" not in answer.content
        (row,) = gate.rows()
        assert (row["outcome"], row["usage_source"]) == ("completed", "upstream_final")
        (line,) = await gate.requests(1)
        assert line["request_id"] == answer.headers["x-request-id"] == row["request_id"]
        assert (line["status"], line["path"], line["output_tokens"]) == (200, CHAT, 2)
        assert (line["model"], line["outcome"]) == ("@cf/there", "completed")
        for secret in ("canary", gate.http.headers["authorization"][-30:]):
            assert secret not in str(gate.log)


async def test_a_bug_in_a_handler_is_500_without_details_and_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(env: Env, call: Call) -> None:
        raise ZeroDivisionError("canary-detail")

    monkeypatch.setitem(v1.ROUTES, "/v1/usage", ("GET", broken))
    async with gateway(tmp_path, stream_ok) as gate:
        answer = await gate.http.get("/v1/usage")
        assert answer.status_code == 500
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("server_error", "internal_error")
        assert answer.headers["x-request-id"] in error["message"]
        assert "canary" not in answer.text
        (line,) = await gate.requests(1)
        assert (line["status"], line["code"]) == (500, "internal_error")
        assert [e["request_id"] for e in gate.log if e["event"] == "internal_error"] == [
            answer.headers["x-request-id"]
        ]


async def test_a_bug_in_a_running_stream_ends_it_with_an_error_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(env: Env, call: Call) -> None:
        await call.event(b"data: 1\n\n")
        raise ZeroDivisionError("canary-detail")

    monkeypatch.setitem(v1.ROUTES, "/v1/usage", ("GET", broken))
    async with gateway(tmp_path, stream_ok) as gate:
        answer = await gate.http.get("/v1/usage")
        last = json.loads(answer.content.split(b"\n\n")[-2].removeprefix(b"data: "))
        assert last["error"]["code"] == "internal_error"
        assert b"[DONE]" not in answer.content
        assert b"canary" not in answer.content


async def test_a_store_that_can_t_be_read_is_503(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(env: Env, call: Call) -> None:
        raise StoreUnavailable("canary: disk")

    monkeypatch.setitem(v1.ROUTES, "/v1/usage", ("GET", broken))
    async with gateway(tmp_path, stream_ok) as gate:
        answer = await gate.http.get("/v1/usage")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        assert answer.json()["error"]["code"] == "store_unavailable"
        assert "canary" not in answer.text


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/v1/chat", f"{CHAT}/", "/v2/models", "/V1/models",
                                  "/v1//models"])  # fmt: skip
async def test_another_path_is_404_whoever_asks(tmp_path: Path, path: str) -> None:
    async with gateway(tmp_path, stream_ok) as gate:
        answer = await gate.http.post(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "route_not_found")


async def test_another_method_is_405(tmp_path: Path) -> None:
    async with gateway(tmp_path, stream_ok) as gate:
        for method, path in (("GET", CHAT), ("POST", "/v1/models"), ("DELETE", "/v1/models/x")):
            answer = await gate.http.request(method, path)
            assert answer.status_code == 405


PUBLIC = {"/v1/openapi.json"}  # what the routes are is in the docs, too


async def test_every_route_asks_who_is_calling_before_anything_else(tmp_path: Path) -> None:
    async with gateway(tmp_path, stream_ok) as gate:
        for path, (method, _) in [*v1.ROUTES.items(), ("/v1/models/@cf/there", ("GET", None))]:
            if path in PUBLIC:
                continue
            for key in ("", "Bearer x", "Bearer ' OR 1=1--"):
                headers = {"authorization": key}
                answer = await gate.http.request(method, path, headers=headers, content=b"{")
                assert answer.status_code == 401, path
        assert gate.rows() == []
        assert gate.server.asked == []


async def test_models_are_listed_and_shown_by_ids_with_slashes(tmp_path: Path) -> None:
    async with gateway(tmp_path, stream_ok) as gate:
        listed = (await gate.http.get("/v1/models")).json()
        assert (listed["object"], [m["id"] for m in listed["data"]]) == ("list", ["@cf/there"])
        assert (await gate.http.get("/v1/models/@cf/there")).json() == listed["data"][0]
        assert (await gate.http.get("/v1/models/gpt-5")).status_code == 404


async def test_a_client_that_leaves_is_499_in_log_and_ledger(tmp_path: Path) -> None:
    async def endless(exchange: Exchange) -> None:
        await exchange.events(text("h"), text("o"), end=False)
        await exchange.gone()

    async with gateway(tmp_path, endless) as gate:
        async with gate.http.stream("POST", CHAT, json=BODY | {"stream": True}) as answer:
            chunks = answer.aiter_raw()
            data = b""
            while data.count(b"\n\n") < 2:
                data += await anext(chunks)
        (line,) = await gate.requests(1)
        assert (line["status"], line["outcome"]) == (499, "client_cancelled")
        (row,) = gate.rows()
        assert (row["status_code"], row["output_tokens"]) == (499, 2)
        assert row["usage_source"] == "gateway_count"


async def test_an_upstream_that_breaks_off_ends_in_an_error_and_isn_t_billed(
    tmp_path: Path,
) -> None:
    async def cut(exchange: Exchange) -> None:
        await exchange.events(text("h"), end=False)
        exchange.close()

    async with gateway(tmp_path, cut) as gate:
        answer = await gate.http.post(CHAT, json=BODY | {"stream": True})
        assert b"[DONE]" not in answer.content
        assert b'"upstream_error"' in answer.content
        (row,) = gate.rows()
        assert (row["outcome"], row["billable"]) == ("upstream_error", 0)


@pytest.mark.parametrize("streamed", [True, False])
async def test_the_end_of_an_answer_leaves_only_after_it_is_on_record(
    tmp_path: Path, streamed: bool
) -> None:
    """The store goes away in the middle: an error, and neither [DONE] nor a body."""
    async with gateway(tmp_path, stream_ok) as gate:

        async def lose_the_store(exchange: Exchange) -> None:
            await asyncio.to_thread(gate.env.ledger._writer.close)
            if streamed:
                await stream_ok(exchange)
            else:
                message = {"role": "assistant", "content": "ho"}
                choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
                await exchange.reply_json(200, {"choices": choices, "usage": USAGE})

        gate.server.answer = lose_the_store
        answer = await gate.http.post(CHAT, json=BODY | {"stream": streamed})
        assert b"[DONE]" not in answer.content
        assert b'"store_unavailable"' in answer.content
        assert answer.status_code == (200 if streamed else 503)
        assert [row["state"] for row in gate.rows()] == ["open"]


async def test_who_the_caller_is(tmp_path: Path) -> None:
    """Enough for a person to know the key again, and no more."""
    async with gateway(tmp_path, stream_ok) as gate:
        answer = await gate.http.get("/v1/whoami")
        found = answer.json()
        assert (found["object"], found["tenant"]["name"]) == ("whoami", "acme")
        assert found["key"]["name"] == "laptop"
        secret = gate.http.headers["authorization"].removeprefix("Bearer ")
        assert found["key"]["hint"] == hint(secret)
        assert abs(found["key"]["created"] - time.time()) < 600
        assert secret not in answer.text
        refused = await gate.http.get("/v1/whoami", headers={"authorization": "Bearer x"})
        assert refused.status_code == 401


async def test_who_the_caller_is_takes_no_parameters(tmp_path: Path) -> None:
    async with gateway(tmp_path, stream_ok) as gate:
        answer = await gate.http.get("/v1/whoami?verbose=1")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "verbose")


@pytest.mark.parametrize("path", ["/v1/models", "/v1/nothing"])
async def test_a_request_for_two_hosts_is_refused(tmp_path: Path, path: str) -> None:
    """Whoever stands before us may have gone by the other one."""
    async with gateway(tmp_path, stream_ok) as gate:
        reader, writer = await asyncio.open_unix_connection(str(gate.socket))
        writer.write(f"GET {path} HTTP/1.1\r\nhost: a.example\r\nhost: b.example\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        assert head.startswith(b"HTTP/1.1 400 ")
