"""What the admin API tells of hosts' pages and counters, and what it has planted in them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from msgspec import json
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engines.api import DomainPages, PageMap, Stats
from engines.fake import FakeEngine
from runtime.metrics import CONTENT_TYPE
from runtime.node_wire import GoneHost, Hosts, HostState, HostView
from tests.gateway.admin.console import Console, console, is_problem
from tests.runtime.servers import running_host, serving

MAP = PageMap(
    page_size=16,
    pages={"free": 1, "active": 1},
    states="af",
    owners=[0, -1],
    domains=[DomainPages("abcdefgh", {"active": 1}, 0.5, 2.0)],
    pinned=0,
    limbo_age_s=0.0,
    launched_step=4,
    completed_step=3,
    generation=9,
)


class Paged(FakeEngine):
    def pages(self) -> PageMap:
        return MAP


@asynccontextmanager
async def desk(folder: Path, engine: FakeEngine) -> AsyncIterator[Console]:
    """A node with one host that answers, one that starts, and one that has just died."""
    folder = folder / "h"
    folder.mkdir()

    async def hosts(_: Request) -> Response:
        views = [
            HostView(id=id, model="echo", state=HostState.READY, socket=socket)
            for id, socket in (
                ("up", str(folder / "host.sock")),
                ("starts", ""),
                ("dead", str(folder / "gone.sock")),
                ("silent", str(folder / "gone.sock")),
            )
        ]
        return Response(json.encode(Hosts(version=1, hosts=views)))

    async def plant(request: Request) -> Response:
        kind = request.path_params["kind"]
        if kind == "flip-bit":
            return JSONResponse({"kind": kind, "done": "a bit was flipped"}, 200, {"x-host": "up"})
        status = {"no_such_fault": 404, "not_development": 403}.get(kind, 409)
        return JSONResponse({"error": {"code": kind, "message": f"because of {kind}"}}, status)

    async def kinds(request: Request) -> Response:
        assert request.path_params["model"] == "@cf/echo"
        return JSONResponse([{"kind": "flip-bit", "layer": "checksum"}])

    async def gone(_: Request) -> Response:
        stats = Stats(steps=3, mismatches={"before/domain": 1}, pages={"free": 1})
        told = [GoneHost(id=id, model="echo", stats=stats) for id in ("gone", "dead")]
        return Response(json.encode(told))

    node = Starlette(
        routes=[
            Route("/gone", gone),
            Route("/hosts", hosts),
            Route("/models/{model:path}/faults", kinds),
            Route("/models/{model:path}/faults/{kind}", plant, methods=["POST"]),
        ]
    )
    async with (
        console(folder, with_node=False) as found,
        serving(node, folder / "node.sock"),
        running_host(folder, engine),
    ):
        yield found


async def get(found: Console, path: str, method: str = "GET") -> httpx.Response:
    async with found.client() as http:
        return await http.request(method, f"/admin/v1/{path}")


async def test_a_host_s_pages(tmp_path: Path) -> None:
    async with desk(tmp_path, Paged()) as found:
        told = (await get(found, "hosts/up/pages")).json()
        assert (told["object"], told["host"], told["model"]) == ("page_map", "up", "echo")
        assert (told["states"], told["owners"], told["generation"]) == ("af", [0, -1], 9)
        assert told["domains"][0]["domain"] == "abcdefgh"
        is_problem(await get(found, "hosts/nobody/pages"), "host-not-found")
        for host in ("starts", "dead"):
            answer = await get(found, f"hosts/{host}/pages")
            is_problem(answer, "host-unreachable")
            assert answer.headers["retry-after"] == "1"
        is_problem(await get(found, "hosts/up/pages?x=1"), "invalid-parameter")


async def test_an_engine_without_pages(tmp_path: Path) -> None:
    async with desk(tmp_path, FakeEngine()) as found:
        is_problem(await get(found, "hosts/up/pages"), "no-pages")


async def test_all_hosts_counters(tmp_path: Path) -> None:
    """One that doesn't answer is told as down, and costs the others nothing."""
    async with desk(tmp_path, FakeEngine()) as found:
        answer = await get(found, "metrics")
        assert answer.headers["content-type"] == CONTENT_TYPE
        assert 'bulkhead_host_up{host="up",model="echo"} 1\n' in answer.text
        assert 'engine_steps_total{host="up",model="echo"} 0\n' in answer.text
        assert 'bulkhead_host_up{host="silent",model="echo"} 0\n' in answer.text
        assert 'engine_steps_total{host="silent"' not in answer.text
        assert "starts" not in answer.text


async def test_a_host_that_has_ended_meanwhile_is_told_once_by_its_last_counters(
    tmp_path: Path,
) -> None:
    """What has a host replaced within seconds is there for who asks every minute."""
    async with desk(tmp_path, FakeEngine()) as found:
        told = (await get(found, "metrics")).text
        for host in ("gone", "dead"):
            labels = f'host="{host}",model="echo"'
            mismatch = f'kv_tag_mismatch_total{{{labels},phase="before",kind="domain"}} 1'
            assert told.count(mismatch) == told.count(f"engine_steps_total{{{labels}}}") == 1
            assert f"host_up{{{labels}}}" not in told


async def test_faults_are_listed_and_planted(tmp_path: Path) -> None:
    async with desk(tmp_path, FakeEngine()) as found:
        told = (await get(found, "models/@cf/echo/faults")).json()
        assert told["data"] == [{"object": "fault", "kind": "flip-bit", "layer": "checksum"}]
        told = (await get(found, "models/@cf/echo/faults/flip-bit", "POST")).json()
        assert told == {
            "object": "planted_fault",
            "model": "@cf/echo",
            "host": "up",
            "kind": "flip-bit",
            "done": "a bit was flipped",
        }


@pytest.mark.parametrize(
    ("code", "problem", "detail"),
    [
        ("not_development", "not-development", "because of not_development"),
        ("no_such_fault", "fault-not-found", "because of no_such_fault"),
        ("no_host", "fault-impossible", "because of no_host"),
        (
            "fault_impossible",
            "fault-impossible",
            "because of fault_impossible; have streams run, then try again",
        ),
    ],
)
async def test_why_a_fault_is_not_planted(
    tmp_path: Path, code: str, problem: str, detail: str
) -> None:
    async with desk(tmp_path, FakeEngine()) as found:
        body = is_problem(await get(found, f"models/echo/faults/{code}", "POST"), problem)
        assert body["detail"] == detail
