"""`bulkhead hosts list` for people."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import convert, to_builtins

from gateway.cli.answers import Host, PoolModel
from gateway.cli.hosts import as_text
from runtime.node_wire import HostState, HostView, ModelState, ModelView


def told(models: list[ModelView], hosts: list[HostView], now: float = 1000) -> list[str]:
    as_json: list[dict[str, Any]] = [to_builtins(model) for model in models]
    as_json.append({"id": "far", "state": "attached", "url": "http://far.example/v1"})
    return as_text(
        convert(as_json, list[PoolModel]), convert(list(map(to_builtins, hosts)), list[Host]), now
    ).splitlines()


def test_models_and_hosts_are_two_tables() -> None:
    model = ModelView(id="echo", state=ModelState.READY, hosts=1, max_hosts=3, in_flight=2)
    host = HostView(
        id="host-1", model="echo", state=HostState.READY, pid=7, since=940, rss_bytes=48_000_000
    )
    lines = [line.split() for line in told([model], [host])]
    assert lines[1] == ["echo", "ready", "1/3", "2", "0", "0"]
    assert lines[2][-1] == "http://far.example/v1"
    assert lines[5] == ["host-1", "echo", "ready", "1", "min", "7", "0", "48", "MB"]


def test_without_hosts_there_is_one_table() -> None:
    assert len(told([ModelView(id="a", state=ModelState.COLD)], [])) == 3


def test_a_failure_says_why_and_until_when() -> None:
    failed = ModelView(
        id="a", state=ModelState.FAILED, failures=5, reason="no\nmemory " + "x" * 99, retry_at=1090
    )
    line = told([failed], [])[1]
    assert "no memory xxx" in line
    assert line.endswith("… (again in 1 min)")
    waiting = ModelView(id="a", state=ModelState.WAITING_FOR_MEMORY, waiting=4)
    assert "waiting for memory" in told([waiting], [])[1]


@pytest.mark.parametrize(("is_down", "state"), [(True, "down"), (False, "attached")])
def test_an_attached_server_s_last_trouble_is_told_with_its_age(is_down: bool, state: str) -> None:
    model = PoolModel(
        id="far",
        state="attached",
        url="http://far.example/v1",
        is_down=is_down,
        reason="Connection\nrefused",
        failed_at=940,
    )
    line = as_text([model], [], 1000).splitlines()[1]
    assert line.split()[1] == state
    assert line.endswith("http://far.example/v1: Connection refused (1 min ago)")


def test_a_host_that_asked_to_be_replaced_and_its_model_say_why() -> None:
    """The model still does when the host is long gone."""
    why = "a request was about to read a page of another domain"
    model = ModelView(id="echo", state=ModelState.READY, retirement=why, retired_at=940)
    host = HostView(id="host-1", model="echo", state=HostState.DRAINING, reason=why)
    lines = told([model], [host])
    assert lines[1].endswith(f"a host was replaced 1 min ago: {why}")
    assert lines[5].endswith(why)
    host = HostView(id="host-1", model="echo", state=HostState.READY, integrity_aborts=2)
    assert told([model], [host])[5].endswith("2 requests stopped by a check of its pages")
    gone = ModelView(id="echo", state=ModelState.COLD, stopped=2)
    assert told([gone], [])[1].endswith("2 requests stopped by a check, on hosts that have ended")
    failing = ModelView(id="echo", state=ModelState.READY, reason="x", retirement=why)
    assert "x; a host was replaced" in told([failing], [])[1]
