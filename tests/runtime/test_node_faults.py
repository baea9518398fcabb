"""Faults on their way through the node: to a ready host of the model, under `dev` alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.runtime.nodes import COLD, WARM, running, settings


@pytest.fixture(autouse=True)
def _short_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sockets of this test lie in its own folder, not beside those of a running Bulkhead."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def code(answer: httpx.Response) -> tuple[int, Any]:
    return answer.status_code, answer.json()["error"]["code"]


async def test_a_node_of_production_refuses_and_so_do_its_hosts(tmp_path: Path) -> None:
    async with running(settings(tmp_path, WARM)) as node:
        (host,) = await node.ready()
        answer = await node.http.post("/models/echo/faults/flip-bit")
        assert code(answer) == (403, "not_development")
        transport = httpx.AsyncHTTPTransport(uds=host["socket"])
        async with httpx.AsyncClient(transport=transport, base_url="http://host") as http:
            assert code(await http.post("/faults/flip-bit")) == (403, "not_development")
            assert (await http.get("/health")).status_code == 200


async def test_under_dev_it_is_handed_on_to_a_host(tmp_path: Path) -> None:
    given = msgspec.structs.replace(settings(tmp_path, WARM), dev=True)
    async with running(given) as node:
        (host,) = await node.ready()
        answer = await node.http.get("/models/echo/faults")
        assert (answer.json(), answer.headers["x-host"]) == ([], host["id"])
        answer = await node.http.post("/models/echo/faults/flip-bit")
        assert code(answer) == (404, "no_such_fault")
        assert "none for the engine fake" in answer.json()["error"]["message"]
        assert code(await node.http.get("/models/nobody/faults")) == (404, "no_such_model")


async def test_a_cold_model_has_nothing_to_plant_in(tmp_path: Path) -> None:
    given = msgspec.structs.replace(settings(tmp_path, COLD), dev=True)
    async with running(given) as node:
        answer = await node.http.post("/models/echo/faults/flip-bit")
        assert code(answer) == (409, "no_host")
        assert "send it a request" in answer.json()["error"]["message"]
