"""A real node with real hosts: it starts them by demand, and tells of every change at once."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import structs

from runtime import keyring
from runtime.capability import Signer
from runtime.config.models import ModelSettings
from runtime.config.sections import FileSettings, HostSettings, ServerSettings
from runtime.node.node import CAPABILITY_LABEL, Node
from runtime.node.probe import client
from runtime.settings import Settings
from runtime.state import node_socket
from tests.runtime.hosts import QUICK, host_children
from tests.runtime.servers import node_on

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _short_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sockets of this test lie in its own folder, not beside those of a running Bulkhead."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def model(id: str = "echo", **changes: Any) -> ModelSettings:
    given: dict[str, Any] = {"engine": "fake", "memory_bytes": 64 * MIB} | changes
    given["options"] = {"step_s": 0.01} | given.get("options", {})
    return ModelSettings(id=id, **given)


ATTACHED = ModelSettings(id="attached", engine="openai", url="http://127.0.0.1:1/v1")
WARM = model(min_hosts=1)
COLD = model(idle_timeout_s=0.2)


def settings(folder: Path, *models: ModelSettings, **hosts: Any) -> Settings:
    given: HostSettings = structs.replace(QUICK, **hosts)
    file = FileSettings(models=models, hosts=given, server=ServerSettings(drain_s=10))
    return Settings(file=file, config_path="", state_dir=folder / "state")


class Running:
    """A node that runs, and what a gateway called `g` says to it."""

    def __init__(self, node: Node, http: httpx.AsyncClient, stop: asyncio.Event) -> None:
        self.node, self.http, self.stop = node, http, stop

    async def told(self, after: int = 0, wait_s: float = 0, **query: Any) -> Any:
        answer = await self.http.get("/hosts", params={"after": after, "wait_s": wait_s} | query)
        assert answer.status_code == 200
        return answer.json()

    async def demand(self, **models: int) -> None:
        """So many requests wait for each of these models, and none for others."""
        body = {"models": {name: {"waiting": count} for name, count in models.items()}}
        answer = await self.http.put("/demand/g", json=body)
        assert answer.status_code == 204

    async def until(self, condition: Callable[[Any], bool], **demand: int) -> Any:
        """What is told once it fulfils a condition; the demand is renewed meanwhile."""
        async with asyncio.timeout(40):
            while not condition(found := await self.told()):
                if demand:
                    await self.demand(**demand)
                await asyncio.sleep(0.02)
        return found

    async def ready(self, count: int = 1, model: str = "echo", **demand: int) -> Any:
        """Its ready hosts, once there are so many."""
        found = await self.until(lambda told: len(ready(told, model)) == count, **demand)
        return ready(found, model)


def ready(told: Any, model: str = "echo") -> list[Any]:
    return [h for h in told["hosts"] if (h["model"], h["state"]) == (model, "ready")]


def other_than(told: Any, host: Any) -> bool:
    """Whether there is a ready host of its model, and it is another one."""
    return [h["id"] for h in ready(told, host["model"])] not in ([], [host["id"]])


def state_of(told: Any, model: str = "echo") -> str:
    return next((m["state"] for m in told["models"] if m["id"] == model), "none")


@asynccontextmanager
async def running(given: Settings) -> AsyncIterator[Running]:
    async with (
        node_on(given) as (node, stop),
        client(str(node_socket(given.state_dir)), 30) as http,
    ):
        yield Running(node, http, stop)
    assert host_children() == []


def headers(node: Running, model: str = "echo") -> dict[str, str]:
    state_dir = node.node._settings.state_dir
    signer = Signer(keyring.load(state_dir).derive(CAPABILITY_LABEL))
    return {"authorization": f"Bearer {signer.mint('d', model)}"}


async def complete(node: Running, host: Any, max_tokens: int = 2) -> Any:
    body = {"model": host["model"], "prompt": "ab", "max_tokens": max_tokens}
    async with client(host["socket"], 60) as http:
        given = headers(node, host["model"])
        answer = await http.post("/v1/completions", json=body, headers=given)
        return answer.json()


async def in_flight(host: Any) -> None:
    """Returns once something runs on a host."""
    async with client(host["socket"], 10) as http, asyncio.timeout(30):
        while (await http.get("/health")).json()["in_flight"] == 0:
            await asyncio.sleep(0.005)


# what it tells


def test_a_node_that_starts_again_tells_no_version_of_before(tmp_path: Path) -> None:
    """Else who polls with the old version would take the new hosts for the old."""
    given = settings(tmp_path, WARM)
    assert Node(given).hosts().version < Node(given).hosts().version


async def test_the_node_tells_of_its_own_hosts_on_private_sockets(tmp_path: Path) -> None:
    async with running(settings(tmp_path, WARM, ATTACHED)) as node:
        (host,) = await node.ready()
        assert (host["model"], host["starts"]) == ("echo", 1)
        for path in (host["socket"], node_socket(tmp_path / "state")):
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert stat.S_IMODE(Path(host["socket"]).parent.stat().st_mode) == 0o700
        told = await node.told()
        assert [m["id"] for m in told["models"]] == ["echo"], "others' servers aren't its own"
        assert host["rss_bytes"] > 10 * MIB
    assert not Path(host["socket"]).parent.exists(), "a stopped node leaves nothing behind"


async def test_a_host_believes_the_gateway_that_shares_the_state_folder(tmp_path: Path) -> None:
    async with running(settings(tmp_path, WARM)) as node:
        (host,) = await node.ready()
        body = {"model": "echo", "prompt": "ab", "max_tokens": 2}
        async with client(host["socket"], 10) as http:
            for name, status in (("echo", 200), ("other", 401)):
                given = headers(node, name)
                answer = await http.post("/v1/completions", json=body, headers=given)
                assert answer.status_code == status


async def test_a_long_poll_wakes_at_a_change(tmp_path: Path) -> None:
    async with running(settings(tmp_path, WARM)) as node:
        (first,) = await node.ready()
        found = await node.told()
        poll = asyncio.ensure_future(node.told(found["version"], 20))
        await asyncio.sleep(0.05)
        assert not poll.done()
        died = time.monotonic()
        os.kill(first["pid"], signal.SIGKILL)
        heard = await poll
        assert time.monotonic() - died < 5
        assert heard["version"] > found["version"]
        assert ready(heard) == []
        told = await node.until(lambda told: other_than(told, first))
        assert ready(told)[0]["starts"] == 2


async def test_a_long_poll_ends_when_its_time_is_up(tmp_path: Path) -> None:
    async with running(settings(tmp_path, WARM)) as node:
        await node.ready()
        version = (await node.told())["version"]
        began = time.monotonic()
        assert (await node.told(version, 0.1))["version"] == version
        assert 0.1 <= time.monotonic() - began < 10
        await node.told(version - 1, 600)  # another version: at once


async def test_nonsense_is_refused(tmp_path: Path) -> None:
    async with running(settings(tmp_path, COLD)) as node:
        for answer in (
            await node.http.get("/hosts", params={"after": "x"}),
            await node.http.get("/hosts", params={"wait_s": "soon"}),
            await node.http.put("/demand/g", content=b"[]"),
            await node.http.put("/demand/g", json={"models": {"echo": {"waiting": "many"}}}),
        ):
            assert answer.status_code == 400
        assert (await node.http.post("/models/nope/restart")).status_code == 404


async def test_a_node_without_own_engines_tells_of_none(tmp_path: Path) -> None:
    async with running(settings(tmp_path, ATTACHED)) as node:
        told = await node.told()
        assert (told["hosts"], told["models"]) == ([], [])


# from nothing, and back to nothing


async def test_nothing_runs_until_somebody_waits_and_again_once_nobody_does(tmp_path: Path) -> None:
    async with running(settings(tmp_path, COLD)) as node:
        told = await node.told()
        assert (state_of(told), told["hosts"], host_children()) == ("cold", [], [])
        (host,) = await node.ready(echo=1)
        assert state_of(await node.told()) == "ready"
        await node.demand()
        await node.until(lambda told: state_of(told) == "cold")
        await node.until(lambda told: told["hosts"] == [])
        assert host_children() == []
        (again,) = await node.ready(echo=1)
        assert again["id"] != host["id"]


async def test_demand_that_nobody_renews_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that was killed needs nothing."""
    monkeypatch.setattr("runtime.node.demand.DEMAND_TTL_S", 0.5)
    async with running(settings(tmp_path, COLD)) as node:
        await node.demand(echo=1)
        await node.until(lambda told: state_of(told) == "cold" and not told["hosts"])


async def test_what_runs_keeps_a_host_even_if_no_gateway_tells(tmp_path: Path) -> None:
    """A host says itself how much it does."""
    async with running(settings(tmp_path, COLD)) as node:
        (host,) = await node.ready(echo=1)
        answer = asyncio.ensure_future(complete(node, host, 300))
        await in_flight(host)
        await node.until(lambda told: told["hosts"][0]["in_flight"] == 1, echo=1)
        await node.demand()
        assert (await answer)["usage"]["completion_tokens"] == 300
        (still,) = ready(await node.told())
        assert still["id"] == host["id"]
        await node.until(lambda told: not told["hosts"])


async def test_hosts_grow_with_what_waits_and_shrink_again(tmp_path: Path) -> None:
    given = model(max_hosts=3, max_in_flight=2, min_hosts=1, idle_timeout_s=0.3)
    async with running(settings(tmp_path, given)) as node:
        await node.ready(1)
        await node.ready(2, echo=3)
        await node.ready(3, echo=100)
        assert len((await node.told())["hosts"]) == 3, "and no more than its most"
        await node.demand()
        await node.until(lambda told: len(told["hosts"]) == 1)
        assert state_of(await node.told()) == "ready"


async def test_a_host_that_goes_is_told_of_and_waits_for_the_gateways_to_know(
    tmp_path: Path,
) -> None:
    """What a gateway sends before it has heard is answered, however late it hears."""
    async with running(settings(tmp_path, COLD)) as node:
        (host,) = await node.ready(echo=1)
        version = (await node.told())["version"]
        poll = asyncio.ensure_future(node.told(version, 20, gateway="g"))
        await node.demand()
        told = await poll
        assert told["hosts"][0]["state"] == "draining"
        assert told["hosts"][0]["reason"] == "idle"
        for _ in range(3):  # longer than a drain takes
            assert (await complete(node, host))["usage"]["completion_tokens"] == 2
            await asyncio.sleep(0.2)
        last = asyncio.ensure_future(node.told(told["version"], 20, gateway="g"))  # I know
        await node.until(lambda told: not told["hosts"])
        await last


# failures


async def test_a_killed_host_is_replaced_as_long_as_it_is_needed(tmp_path: Path) -> None:
    async with running(settings(tmp_path, COLD)) as node:
        (host,) = await node.ready(echo=1)
        os.kill(host["pid"], signal.SIGKILL)
        told = await node.until(lambda told: other_than(told, host), echo=1)
        (second,) = ready(told)
        assert second["starts"] == 2
        (view,) = (await node.told())["models"]
        assert (view["failures"], "was killed" in view["reason"]) == (1, True)
        await node.demand()
        os.kill(second["pid"], signal.SIGKILL)
        await node.until(lambda told: not told["hosts"] and state_of(told) == "cold")


async def test_a_host_that_can_t_start_is_tried_more_and_more_rarely_and_then_has_failed(
    tmp_path: Path,
) -> None:
    flag = tmp_path / "fail"
    flag.touch()
    given = model(options={"fail_file": str(flag)})
    hosts = {"max_failures": 3, "retry_failed_s": 3600}
    async with running(settings(tmp_path, given, **hosts)) as node:
        began = time.monotonic()
        told = await node.until(lambda told: state_of(told) == "failed", echo=1)
        assert time.monotonic() - began >= 0.05 + 0.1
        (view,) = told["models"]
        assert (view["failures"], view["hosts"]) == (3, 0)
        assert "told to fail" in view["reason"]
        assert time.time() + 3000 < view["retry_at"] < time.time() + 3601
        flag.unlink()
        await node.demand(echo=1)
        await asyncio.sleep(0.5)
        assert state_of(await node.told()) == "failed", "it isn't tried before its time"
        answer = await node.http.post("/models/echo/restart")
        assert answer.status_code == 200
        await node.ready(echo=1)
        (view,) = (await node.told())["models"]
        assert (view["failures"], view["reason"], view["retry_at"]) == (0, "", 0)


async def test_a_failed_model_is_tried_again_by_a_request_after_a_while(tmp_path: Path) -> None:
    flag = tmp_path / "fail"
    flag.touch()
    given = model(options={"fail_file": str(flag)})
    hosts = {"max_failures": 2, "retry_failed_s": 0.5}
    async with running(settings(tmp_path, given, **hosts)) as node:
        await node.until(lambda told: state_of(told) == "failed", echo=1)
        await node.demand()
        await node.until(lambda told: state_of(told) == "cold")
        assert host_children() == [], "nobody asks, so nothing is tried"
        await node.until(lambda told: state_of(told) == "failed", echo=1)
        flag.unlink()
        await node.ready(echo=1)


async def test_a_deployment_forgives_a_failed_model(tmp_path: Path) -> None:
    broken = settings(tmp_path, model(options={"bogus": 1}), max_failures=1)
    async with running(broken) as node:
        await node.until(lambda told: state_of(told) == "failed", echo=1)
        node.node.apply(settings(tmp_path, model()), 8)
        await node.ready(echo=1)
        assert (await node.told())["deployment"] == 8


async def test_a_machine_without_room_for_a_process_is_a_failure_like_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(settings(tmp_path, COLD, max_failures=2)) as node:
        with monkeypatch.context() as patch:
            patch.setattr("sys.executable", str(tmp_path / "python"))
            told = await node.until(lambda told: state_of(told) == "failed", echo=1)
            assert "no process could be started" in told["models"][0]["reason"]
        await node.http.post("/models/echo/restart")
        await node.ready(echo=1)


# memory


async def test_two_models_share_one_place_and_the_idle_one_gives_way(tmp_path: Path) -> None:
    one, two = model("one"), model("two")  # idle for 300 s before they stop by themselves
    async with running(settings(tmp_path, one, two, memory_bytes=100 * MIB)) as node:
        await node.ready(model="one", one=1)
        await node.demand()
        await node.ready(model="two", two=1)
        told = await node.told()
        assert ready(told, "one") == []
        assert len(host_children()) == 1
        await node.demand()
        await node.ready(model="one", one=1)


async def test_a_busy_one_gives_way_only_after_a_while(tmp_path: Path) -> None:
    """Its answer ends; meanwhile the other waits, and is said to wait for memory."""
    one, two = model("one"), model("two")
    given = settings(tmp_path, one, two, memory_bytes=100 * MIB, yield_s=1.5)
    async with running(given) as node:
        (host,) = await node.ready(model="one", one=1)
        since = time.monotonic()
        answer = asyncio.ensure_future(complete(node, host, 400))
        await in_flight(host)
        told = await node.until(
            lambda told: state_of(told, "two") == "waiting_for_memory", one=1, two=1
        )
        assert ready(told, "one")
        told = await node.until(lambda told: not ready(told, "one"), one=1, two=1)
        assert time.monotonic() - since >= 1.5
        assert "memory" in next(h["reason"] for h in told["hosts"])
        await node.ready(model="two", two=1)
        assert (await answer)["usage"]["completion_tokens"] == 400


async def test_what_is_promised_doesn_t_give_way(tmp_path: Path) -> None:
    kept, other = model("kept", min_hosts=1), model("other", max_hosts=2)
    given = settings(tmp_path, kept, other, memory_bytes=130 * MIB, yield_s=0.2)
    async with running(given) as node:
        (host,) = await node.ready(model="kept")
        await node.ready(model="other", other=1)
        for _ in range(20):
            await node.demand(other=1000)  # it would like to have two
            await asyncio.sleep(0.05)
        told = await node.told()
        assert [h["id"] for h in ready(told, "kept")] == [host["id"]]
        assert len(ready(told, "other")) == 1


async def test_a_size_that_is_corrected_counts_for_hosts_that_run(tmp_path: Path) -> None:
    one, two = model("one", min_hosts=1), model("two", min_hosts=1)
    async with running(settings(tmp_path, one, memory_bytes=100 * MIB)) as node:
        (host,) = await node.ready(model="one")
        smaller = structs.replace(one, memory_bytes=36 * MIB)
        node.node.apply(settings(tmp_path, smaller, two, memory_bytes=100 * MIB))
        await node.ready(model="two")
        assert ready(await node.told(), "one")[0]["id"] == host["id"]


async def test_a_model_that_never_fits_has_failed_and_says_why(tmp_path: Path) -> None:
    big, small = model("big", memory_bytes=200 * MIB), model("small")
    async with running(settings(tmp_path, big, small, memory_bytes=100 * MIB)) as node:
        await node.ready(model="small", big=1, small=1)
        told = await node.told()
        assert state_of(told, "big") == "failed"
        assert f"budget of {100 * MIB}" in told["models"][0]["reason"]
        node.node.apply(settings(tmp_path, big, small, memory_bytes=300 * MIB))
        await node.ready(model="big", big=1)


# other configurations


async def test_a_new_configuration_leaves_alone_what_it_doesn_t_change(tmp_path: Path) -> None:
    """Prices, limits and bounds restart nothing; models come and go."""
    one, gone = model("one", min_hosts=1), model("gone", min_hosts=1)
    async with running(settings(tmp_path, one, gone)) as node:
        (kept,) = await node.ready(model="one")
        await node.ready(model="gone")
        same = structs.replace(one, default_max_tokens=512, max_hosts=2, owned_by="other")
        node.node.apply(settings(tmp_path, model("new", min_hosts=1), same), 2)
        await node.ready(model="new")
        await node.until(lambda told: [m["id"] for m in told["models"]] == ["one", "new"])
        told = await node.told()
        assert len(told["hosts"]) == 2
        assert [h["id"] for h in ready(told, "one")] == [kept["id"]]
        node.node.apply(settings(tmp_path, one, gone), 3)
        await node.ready(model="gone")


async def test_a_request_that_came_before_its_model_s_removal_still_gets_a_host(
    tmp_path: Path,
) -> None:
    """Its gateway may hear of the removal a moment later than the node."""
    gone = model("gone", options={"start_s": 0.5})
    async with running(settings(tmp_path, WARM, gone)) as node:
        await node.demand(gone=1)
        await node.until(lambda told: state_of(told, "gone") == "starting", gone=1)
        node.node.apply(settings(tmp_path, WARM), 2)
        await node.ready(model="gone", gone=1)
        await node.demand()
        await node.until(lambda told: [m["id"] for m in told["models"]] == ["echo"])
        node.node.apply(settings(tmp_path, WARM, gone), 3)
        node.node.apply(settings(tmp_path, WARM), 4)
        await node.ready(model="gone", gone=1)  # also one that was cold
        await node.demand()
        await node.until(lambda told: [m["id"] for m in told["models"]] == ["echo"])


async def test_a_changed_model_gets_its_new_host_before_the_old_one_goes(tmp_path: Path) -> None:
    async with running(settings(tmp_path, WARM)) as node:
        (old,) = await node.ready()
        seen: list[int] = []
        follow = asyncio.ensure_future(_count_ready(node, seen))
        answer = asyncio.ensure_future(complete(node, old, 200))
        await in_flight(old)
        node.node.apply(settings(tmp_path, model(min_hosts=1, options={"max_running": 7})), 2)
        await node.until(lambda told: other_than(told, old))
        assert (await answer)["usage"]["completion_tokens"] == 200
        await node.until(lambda told: len(told["hosts"]) == 1)
        follow.cancel()
        assert min(seen) >= 1, "there was always one that took requests"


async def _count_ready(node: Running, seen: list[int]) -> None:
    version = 0
    while True:
        told = await node.told(version, 20)
        version = told["version"]
        seen.append(len(ready(told)))


async def test_without_memory_for_both_the_old_one_goes_first(tmp_path: Path) -> None:
    async with running(settings(tmp_path, WARM, memory_bytes=100 * MIB)) as node:
        (old,) = await node.ready()
        changed = model(min_hosts=1, options={"max_running": 7})
        node.node.apply(settings(tmp_path, changed, memory_bytes=100 * MIB), 2)
        await node.until(lambda told: other_than(told, old))


async def test_if_the_changed_one_can_t_start_the_old_one_goes_on(tmp_path: Path) -> None:
    async with running(settings(tmp_path, WARM)) as node:
        (old,) = await node.ready()
        broken = settings(tmp_path, model(min_hosts=1, options={"bogus": 1}), max_failures=2)
        node.node.apply(broken, 2)
        await node.until(lambda told: told["models"][0]["failures"] == 2)
        told = await node.told()
        assert [h["id"] for h in ready(told)] == [old["id"]]
        assert state_of(told) == "ready"
        assert "bogus" in told["models"][0]["reason"]


async def test_a_host_that_serves_well_doesn_t_make_failing_ones_start_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.node.pool.HEALTHY_S", 0.0)
    async with running(settings(tmp_path, WARM)) as node:
        (old,) = await node.ready()
        broken = model(min_hosts=1, options={"bogus": 1})
        given = settings(tmp_path, broken, max_failures=2, retry_failed_s=3600)
        node.node.apply(given, 2)
        told = await node.until(lambda told: told["models"][0]["failures"] == 2)
        await asyncio.sleep(1)
        assert (await node.told())["version"] == told["version"], "nothing is tried before its time"
        assert [h["id"] for h in ready(told)] == [old["id"]]


async def test_a_restart_replaces_hosts_and_loses_nothing(tmp_path: Path) -> None:
    slashed = model("@cf/meta/echo", min_hosts=1)
    async with running(settings(tmp_path, slashed)) as node:
        (old,) = await node.ready(model=slashed.id)
        answer = asyncio.ensure_future(complete(node, old, 100))
        await in_flight(old)
        assert (await node.http.post("/models/@cf%2Fmeta%2Fecho/restart")).status_code == 200
        await node.until(lambda told: other_than(told, old))
        assert (await answer)["usage"]["completion_tokens"] == 100


# the end


async def test_a_stop_drains_and_says_so_while_it_does(tmp_path: Path) -> None:
    """Running answers end; whoever polls hears that no new one should be sent."""
    async with running(settings(tmp_path, WARM)) as node:
        (host,) = await node.ready()
        version = (await node.told())["version"]
        poll = asyncio.ensure_future(node.told(version, 20))
        answer = asyncio.ensure_future(complete(node, host, 50))
        await in_flight(host)
        node.stop.set()
        assert (await poll)["hosts"][0]["state"] == "draining"
        assert (await answer)["usage"]["completion_tokens"] == 50


async def test_a_stop_while_hosts_start_leaves_no_process(tmp_path: Path) -> None:
    given = model(min_hosts=2, max_hosts=2, options={"start_s": 600})
    async with running(settings(tmp_path, given)) as node:
        await node.until(lambda told: len(told["hosts"]) == 2)
    assert host_children() == []
