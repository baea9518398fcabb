"""Faults planted through a host's control socket: refused unless `dev` made it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from engines import registry
from engines.api import Engine, EngineError, FaultKind
from engines.fake import FakeEngine
from runtime.host.control import Control
from runtime.host.engine_thread import EngineThread
from runtime.node.probe import client
from tests.runtime.servers import as_engine, serving

KINDS = [FaultKind("free-held-page", "F1", "check before", "A page is freed.")]


class NothingRuns(EngineError):
    code = "fault_impossible"


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that planted, in place of the embedded engine's own ways."""
    found: list[str] = []

    def plant(name: str, engine: Engine, kind: str) -> str:
        assert name == "embedded"
        assert isinstance(engine, FakeEngine)
        if found:
            raise NothingRuns("2 requests must be answering, and 0 are")
        found.append(kind)
        return "page 7 was freed"

    monkeypatch.setattr(registry, "plant_fault", plant)
    monkeypatch.setattr(registry, "fault_kinds", lambda name: KINDS if name == "embedded" else [])
    return found


@asynccontextmanager
async def control(folder: Path, faults: str) -> AsyncIterator[httpx.AsyncClient]:
    thread = EngineThread(lambda: as_engine(FakeEngine()))
    await thread.start()
    app = Starlette(routes=Control("echo", thread, faults).routes())
    async with serving(app, folder / "h.sock"), client(str(folder / "h.sock"), 10) as http:
        yield http
    thread.close()


def told(answer: httpx.Response) -> tuple[int, Any]:
    return answer.status_code, answer.json()["error"]["code"]


async def test_a_host_of_production_refuses(tmp_path: Path, planted: list[str]) -> None:
    async with control(tmp_path, "") as http:
        assert told(await http.get("/faults")) == (403, "not_development")
        assert told(await http.post("/faults/free-held-page")) == (403, "not_development")
    assert planted == []


async def test_one_of_dev_plants_between_steps(tmp_path: Path, planted: list[str]) -> None:
    async with control(tmp_path, "embedded") as http:
        (kind,) = (await http.get("/faults")).json()
        assert (kind["kind"], kind["layer"]) == ("free-held-page", "check before")
        answer = await http.post("/faults/free-held-page")
        assert answer.json() == {"kind": "free-held-page", "done": "page 7 was freed"}
        assert planted == ["free-held-page"]
        assert told(await http.post("/faults/free-held-page")) == (409, "fault_impossible")
        assert told(await http.post("/faults/bogus")) == (404, "no_such_fault")
        bogus, near = [await http.post(f"/faults/{one}") for one in ("bogus", "free-hold-page")]
        assert bogus.json()["error"]["message"] == "unknown fault 'bogus'; known: free-held-page"
        assert near.json()["error"]["message"].endswith("; did you mean `free-held-page`?")
        assert (await http.get("/stats")).status_code == 200, "the engine goes on"


async def test_an_engine_that_none_can_be_planted_in_says_so(tmp_path: Path) -> None:
    async with control(tmp_path, "fake") as http:
        answer = await http.post("/faults/free-held-page")
        assert told(answer) == (404, "no_such_fault")
        assert "none for the engine fake" in answer.json()["error"]["message"]
