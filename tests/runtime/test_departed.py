"""What hosts counted outlives them for a while: an alert that looks now and then must see it."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.api import Stats
from runtime.node import departed
from runtime.node.departed import Departed
from runtime.node_wire import HostState, HostView
from tests.runtime.nodes import complete, model, ready, running, settings

FAULTY = {"faults": True, "step_s": 0.005}


@pytest.fixture(autouse=True)
def _short_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sockets of this test lie in its own folder, not beside those of a running Bulkhead."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def host(id: str) -> HostView:
    return HostView(id=id, model="m", state=HostState.DRAINING)


def test_they_are_kept_for_so_long() -> None:
    found = Departed()
    found.note(host("a"), Stats(steps=1), 0)
    found.note(host("b"), Stats(steps=2), 600)
    assert [host.id for host in found.lately(800)] == ["a", "b"]
    assert [host.stats.steps for host in found.lately(departed.KEPT_S + 1)] == [2]
    assert found.lately(departed.KEPT_S + 601) == []


def test_and_only_so_many() -> None:
    found = Departed()
    for number in range(departed.MAX_KEPT + 5):
        found.note(host(str(number)), Stats(), 0)
    assert len(found.lately(1)) == departed.MAX_KEPT


async def test_a_host_tells_at_its_end_what_it_counted_and_its_model_keeps_what_was_stopped(
    tmp_path: Path,
) -> None:
    """No health check asks it here: it says so itself. A restart by hand forgets the stops."""
    given = model(idle_timeout_s=0.2, options=FAULTY)
    async with running(settings(tmp_path, given, health_every_s=1000)) as node:
        (live,) = await node.ready(echo=1)
        answer = await complete(node, live, 20, prompt="integrity")
        assert answer["error"]["code"] == "kv_integrity_abort"
        await node.demand()
        told = await node.until(lambda told: told["hosts"] == [])
        assert told["models"][0]["stopped"] == 1
        (gone,) = (await node.http.get("/gone")).json()
        assert (gone["id"], gone["model"]) == (live["id"], "echo")
        assert gone["stats"]["integrity_aborts"] == 1
        await node.http.post("/models/echo/restart")
        assert (await node.told())["models"][0]["stopped"] == 0


async def test_one_that_is_killed_has_what_it_told_last(tmp_path: Path) -> None:
    async with running(settings(tmp_path, model(min_hosts=1, options=FAULTY))) as node:
        (live,) = await node.ready()
        await complete(node, live, 4)
        life = next(iter(node.node._pools["echo"].lives))
        await node.until(lambda _: life.counters is not None and life.counters.output_tokens == 4)
        life._kill()
        await node.until(lambda told: bool(ready(told)) and ready(told)[0]["id"] != live["id"])
        (gone,) = (await node.http.get("/gone")).json()
        assert gone["stats"]["output_tokens"] == 4


async def test_a_host_that_never_served_has_counted_nothing(tmp_path: Path) -> None:
    given = model(min_hosts=1, options={"start_s": 600})
    async with running(settings(tmp_path, given)) as node:
        await node.until(lambda told: told["hosts"] != [])
        await node.http.post("/models/echo/restart")
        assert (await node.http.get("/gone")).json() == []
