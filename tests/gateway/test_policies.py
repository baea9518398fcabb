"""What a config's routes, limits, origins and observability do to requests, over real HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.gateway.front import BODY, CHAT, DONE, ONE_MODEL, gateway, stream_ok, text
from tests.runtime.upstream import Exchange

APP = "https://app.acme.test"
PAGES = f"""
[[tenants]]
name = "acme"
origins = ["{APP}"]
[[tenants]]
name = "beta"
origins = ["https://beta.test"]
"""


async def test_elsewhere_nothing_is_answered(tmp_path: Path) -> None:
    config = 'routes = ["ai.example.com/v1/*", "*.acme.test/v1/models"]\n' + ONE_MODEL
    async with gateway(tmp_path, stream_ok, config) as gate:
        for host, path, status in [
            ("ai.example.com", "/v1/models", 200),
            ("AI.example.com:8787", "/v1/models", 200),
            ("x.acme.test", "/v1/models", 200),
            ("x.acme.test", "/v1/usage", 404),
            ("acme.test", "/v1/models", 404),
            ("evil.test", "/v1/models", 404),
        ]:
            answer = await gate.http.get(path, headers={"host": host})
            assert answer.status_code == status, (host, path)
        assert answer.json()["error"]["code"] == "route_not_found"
        refused = await gate.http.get("/v1/usage", headers={"host": "x", "authorization": ""})
        assert refused.status_code == 404, "before anybody asks who is calling"


async def test_more_completions_than_the_limit_are_503_and_other_routes_go_on(
    tmp_path: Path,
) -> None:
    release = asyncio.Event()

    async def held(exchange: Exchange) -> None:
        await release.wait()
        await stream_ok(exchange)

    async with gateway(tmp_path, held, "[limits]\nmax_requests = 2\n" + ONE_MODEL) as gate:
        body = BODY | {"stream": True}
        running = [asyncio.ensure_future(gate.http.post(CHAT, json=body)) for _ in range(2)]
        async with asyncio.timeout(10):
            while len(gate.server.asked) < 2:
                await asyncio.sleep(0.005)
        busy = await gate.http.post(CHAT, json=body)
        assert (busy.status_code, busy.json()["error"]["code"]) == (503, "gateway_busy")
        assert int(busy.headers["retry-after"]) >= 1
        stranger = await gate.http.post(CHAT, json=body, headers={"authorization": "Bearer x"})
        assert stranger.status_code == 401, "who has no key needs no place, and takes none"
        assert (await gate.http.get("/v1/models")).status_code == 200
        release.set()
        assert [answer.status_code for answer in await asyncio.gather(*running)] == [200, 200]
        assert (await gate.http.post(CHAT, json=body)).status_code == 200
        assert len(gate.rows()) == 3, "what is refused is no request on record"


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_request_that_takes_too_long_is_a_timeout_and_unbilled(
    tmp_path: Path, streamed: bool
) -> None:
    async def starts(exchange: Exchange) -> None:
        if streamed:
            await exchange.events(text("h"), text("o"), end=False)
        await exchange.gone()

    wall_s = 3 if streamed else 0.2  # what comes before it has time to come
    async with gateway(tmp_path, starts, f"[limits]\nwall_s = {wall_s}\n" + ONE_MODEL) as gate:
        answer = await gate.http.post(CHAT, json=BODY | {"stream": streamed})
        assert answer.status_code == (200 if streamed else 504)
        assert b'"request_timeout"' in answer.content
        assert DONE not in answer.content
        (row,) = gate.rows()
        assert (row["outcome"], row["billable"], row["amount_pico"]) == ("timeout", 0, 0)
        (line,) = await gate.requests(1)
        assert (line["code"], line["outcome"]) == ("request_timeout", "timeout")


async def test_a_page_of_the_caller_s_tenant_may_read_every_answer(tmp_path: Path) -> None:
    async with gateway(tmp_path, stream_ok, PAGES + ONE_MODEL) as gate:
        page = {"origin": APP}
        answers = [
            await gate.http.post(CHAT, json=BODY | {"stream": True}, headers=page),
            await gate.http.post(CHAT, content=b"{", headers=page),
            await gate.http.get("/v1/models", headers=page),
            await gate.http.get("/v1/models", headers=page | {"authorization": "Bearer x"}),
            await gate.http.get("/v1/nowhere", headers=page),
            await gate.http.get(CHAT, headers=page),
        ]
        assert [answer.status_code for answer in answers] == [200, 400, 200, 401, 404, 405]
        for answer in answers:
            assert answer.headers["access-control-allow-origin"] == APP
            assert "x-request-id" in answer.headers["access-control-expose-headers"]
            assert "Origin" in answer.headers["vary"]
        assert DONE in answers[0].content


async def test_a_foreign_page_is_refused_before_anything_runs(tmp_path: Path) -> None:
    async with gateway(tmp_path, stream_ok, PAGES + ONE_MODEL) as gate:
        for origin in ("https://beta.test", "https://evil.test", "null"):
            answer = await gate.http.post(CHAT, json=BODY, headers={"origin": origin})
            assert (answer.status_code, answer.json()["error"]["code"]) == (
                403,
                "origin_not_allowed",
            )
            assert "access-control-allow-origin" not in answer.headers
        assert gate.rows() == []
        assert gate.server.asked == []


async def test_a_tenant_without_pages_is_served_and_no_page_can_read_it(tmp_path: Path) -> None:
    async with gateway(tmp_path, stream_ok, PAGES + ONE_MODEL, ("acme", "quiet")) as gate:
        for headers in ({"origin": APP}, {"origin": "https://evil.test"}, {}):
            answer = await gate.http.get("/v1/models", headers=gate.bearer("quiet") | headers)
            assert answer.status_code == 200
            assert "access-control-allow-origin" not in answer.headers
            assert "Origin" in answer.headers["vary"]


async def test_a_preflight_needs_no_key(tmp_path: Path) -> None:
    async with gateway(tmp_path, stream_ok, PAGES + ONE_MODEL) as gate:
        asks = {
            "authorization": "",
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type,x-stainless-os",
        }
        yes = await gate.http.options(CHAT, headers=asks | {"origin": APP})
        assert (yes.status_code, yes.content) == (204, b"")
        assert yes.headers["access-control-allow-origin"] == APP
        assert "x-stainless-os" in yes.headers["access-control-allow-headers"]
        no = await gate.http.options(CHAT, headers=asks | {"origin": "https://evil.test"})
        assert (no.status_code, no.json()["error"]["code"]) == (403, "origin_not_allowed")
        plain = await gate.http.options(CHAT)
        assert plain.status_code == 405, "without a page, OPTIONS is a method like any other"


async def test_without_origins_in_the_config_nothing_is_said_of_pages(tmp_path: Path) -> None:
    async with gateway(tmp_path, stream_ok) as gate:
        answer = await gate.http.get("/v1/models", headers={"origin": APP})
        assert answer.status_code == 200
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert "Origin" not in answer.headers["vary"]


async def test_failed_requests_are_told_whatever_the_share(tmp_path: Path) -> None:
    config = "[observability]\nhead_sampling_rate = 0\n" + ONE_MODEL
    async with gateway(tmp_path, stream_ok, config) as gate:
        await gate.http.get("/v1/models")
        await gate.http.get("/v1/models/nope")
        (line,) = await gate.requests(1)
        assert line["status"] == 404


async def test_nothing_is_told_when_it_is_off(tmp_path: Path) -> None:
    config = "[observability]\nenabled = false\n" + ONE_MODEL
    async with gateway(tmp_path, stream_ok, config) as gate:
        assert (await gate.http.get("/v1/models/nope")).status_code == 404
        assert (await gate.http.get("/v1/models")).status_code == 200
        assert await gate.requests(0) == []
