"""`bulkhead kv map` and `bulkhead fault`: whom they ask, and what they say when that fails."""

from __future__ import annotations

import json
from typing import Any

import httpx
import msgspec
import pytest
from click.testing import CliRunner, Result

from engines.api import Stats
from gateway.cli import calling, fault, kv
from gateway.cli.calling import Server
from gateway.cli.commands import main
from runtime import metrics

PAGES = {
    "host": "host-1",
    "model": "smol",
    "page_size": 16,
    "pages": {"free": 2, "active": 1},
    "states": "aff",
    "owners": [0, -1, -1],
    "domains": [{"domain": "abcdefgh", "pages": {"active": 1}, "youngest_s": 1.0, "oldest_s": 2.0}],
    "pinned": 0,
    "limbo_age_s": 0.0,
    "generation": 7,
}


def host(id: str, model: str) -> dict[str, Any]:
    return {
        "id": id,
        "model": model,
        "state": "ready",
        "since": 0.0,
        "pid": 1,
        "in_flight": 0,
        "rss_bytes": 0,
    }


def model(id: str, hosts: int, state: str = "ready") -> dict[str, Any]:
    return {"id": id, "state": state, "hosts": hosts}


class Desk:
    """An admin API of two hosts, one of them without pages."""

    def __init__(self) -> None:
        self.hosts = [host("host-1", "smol"), host("host-2", "echo")]
        self.models = [model("smol", 1), model("echo", 0), model("far", 0, "attached")]
        self.planted: list[str] = []
        self.stops = 0  # requests, once a fault is planted

    def answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/admin/v1/")
        if path == "metrics":
            return httpx.Response(200, text=self._metrics())
        if path.startswith("models/smol/faults"):
            return self._fault(path, request.method)
        found: dict[str, Any] = {
            "hosts": {"data": self.hosts},
            "models": {"data": self.models},
            "hosts/host-1/pages": PAGES,
        }
        if path in found:
            return httpx.Response(200, json=found[path])
        return self._problem(404, "the engine of echo keeps nothing in pages")

    def _fault(self, path: str, method: str) -> httpx.Response:
        if method == "GET":
            kind = {"kind": "flip-bit", "number": "F24", "layer": "checksum", "what": "A bit."}
            return httpx.Response(200, json={"data": [kind]})
        self.planted.append(path.rpartition("/")[2])
        if self.planted[-1] == "swap-tables":
            return self._problem(403, "faults are planted by `bulkhead dev` alone")
        return httpx.Response(200, json={"host": "host-1", "done": "a bit was flipped"})

    def _metrics(self) -> str:
        stops = self.stops if self.planted else 0
        stats = Stats(mismatches={"after/stale": stops}, integrity_aborts=stops, pages={"free": 64})
        return metrics.text([metrics.Host({"host": "host-1", "model": "smol"}, stats)])

    def _problem(self, status: int, detail: str) -> httpx.Response:
        content = msgspec.json.encode({"detail": detail})
        headers = {"content-type": calling.PROBLEM}
        return httpx.Response(status, content=content, headers=headers)


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    found = Desk()

    def client(_: Server, timeout_s: float = 1.0) -> httpx.Client:
        return httpx.Client(base_url="http://desk", transport=httpx.MockTransport(found.answer))

    monkeypatch.setattr(Server, "client", client)
    monkeypatch.setattr(fault, "WATCH_S", 0.0)
    monkeypatch.setattr(fault, "LOOK_EVERY_S", 0.0)
    for module in (kv, fault):
        monkeypatch.setattr(module, "admin_server", lambda places: Server("http://desk", ""))
    return found


def run(*args: str) -> Result:
    return CliRunner().invoke(main, args)


def test_all_hosts_are_drawn_and_one_without_pages_says_so(desk: Desk) -> None:
    told = run("kv", "map").output
    assert "smol · host-1" in told
    assert "A··" in told, "there are no colours in a pipe"
    assert "A abcdefgh: 1 active" in told
    assert "echo · host-2: the engine of echo keeps nothing" in told


@pytest.mark.parametrize("target", ["smol", "host-1"])
def test_one_model_s_or_one_host(desk: Desk, target: str) -> None:
    told = run("kv", "map", target, "--once").output
    assert "host-1" in told
    assert "host-2" not in told


def test_what_isn_t_there_is_told_with_what_is(desk: Desk) -> None:
    result = run("kv", "map", "nobody")
    assert result.exit_code == 1
    assert "'nobody'" in result.output
    assert "host-1 (smol), host-2 (echo)" in result.output
    desk.hosts = []
    assert run("kv", "map").output.strip() == kv.NONE


def test_as_json_it_is_all_that_was_told(desk: Desk) -> None:
    assert json.loads(run("kv", "map", "--json").output) == [PAGES]
    assert run("kv", "map", "host-2", "--json").exit_code == 1


def test_faults_are_of_the_model_that_has_hosts(desk: Desk) -> None:
    assert run("fault", "list").output.splitlines()[1].split() == [
        *("flip-bit", "F24", "checksum", "A", "bit.")
    ]
    assert run("fault", "inject", "flip-bit").output.startswith("host-1: a bit was flipped.\n")
    assert desk.planted == ["flip-bit"]


def test_a_planted_fault_is_watched_until_it_is_noticed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = run("fault", "inject", "flip-bit").output.splitlines()[1]
    assert told == "Not noticed within 0 s: scrubbing comes to it in time."
    desk.planted, desk.stops = [], 1
    monkeypatch.setattr(fault, "WATCH_S", 60.0)
    told = run("fault", "inject", "flip-bit").output.splitlines()[1]
    assert told == "Noticed by the check after; 1 request stopped."
    desk.planted = []
    document = json.loads(run("fault", "inject", "flip-bit", "--json").output)
    assert document["outcome"] == "noticed by the check after; 1 request stopped"


def test_of_several_models_one_has_to_be_named(desk: Desk) -> None:
    desk.models.append(model("other", 2))
    result = run("fault", "inject", "flip-bit")
    assert (result.exit_code, desk.planted) == (1, [])
    assert "name one with --model: smol, other" in result.output
    assert run("fault", "inject", "flip-bit", "--model", "smol").exit_code == 0


def test_a_refusal_is_told_as_such_and_not_as_a_wrong_key(desk: Desk) -> None:
    result = run("fault", "inject", "swap-tables")
    assert result.exit_code == 1
    assert result.output == "Error: faults are planted by `bulkhead dev` alone\n"
