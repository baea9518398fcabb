"""`bulkhead trt launch`, from the command line to systemd, with real processes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.launching import IMAGE, SECRET, Containers, Launch, Manager, launch
from tests.runtime.trt.serving import is_alive
from tests.waiting import wait_for

BEARER = {"authorization": f"Bearer {SECRET}"}
VIOLATION = {"step": 3, "request": 5, "client": None, "salt": "ab", "kind": "foreign", "block": 9}


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Launch]:
    with launch(tmp_path) as found:
        yield found


def test_it_serves_is_asked_and_ends_in_order(one: Launch) -> None:
    one.start()
    view = one.ready()
    assert view["url"] == one.url
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    answer = httpx.post(f"{one.url}/v1/chat/completions", json=body, timeout=60)
    assert answer.json()["usage"]["completion_tokens"] == 3
    told = one.run("status", "--json")
    assert told.returncode == 0, told.stderr
    assert [found["pid"] for found in json.loads(told.stdout)] == [view["pid"]]
    assert "ready" in one.run("status", "llama").stdout
    assert one.stop() == 0
    assert not is_alive(view["pid"])
    assert [event["event"] for event in one.events() if event["event"] != "trt_says"] == [
        "trt_starting",
        "trt_ready",
        "trt_drained",
    ]
    gone = one.run("status", "llama")
    assert (gone.returncode, "can't be asked" in gone.stdout) == (1, True)


def test_the_server_gets_what_was_rendered_and_no_secret_of_ours(one: Launch) -> None:
    one.behave(says=f"[TRT-LLM] [I] {SECRET} their-own-token")
    one.start(BULKHEAD_ADMIN_KEY="an-admin-key-of-32-characters-at-least")
    one.ready()
    found = dict(
        line.split("=", 1)
        for line in (one.folder / "environment").read_text().splitlines()
        if "=" in line
    )
    folder = Path(found["PYTHONPATH"]).parent
    assert folder.is_relative_to(one.folder / "state" / "trt")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "serve.yaml").is_file()
    assert (folder / "python/engines/trtllm/guard.py").is_file()
    assert Path(found["BULKHEAD_GUARD_DIR"]).stat().st_mode & 0o777 == 0o700
    assert {name for name in found if name.startswith("BULKHEAD")} == {
        "BULKHEAD_GUARD_DIR",
        "BULKHEAD_LAUNCH",
    }
    assert "GUARD" not in found
    assert SECRET not in found.values()
    assert found["OTHERS_TOKEN"] == "their-own-token"
    lines = [event["line"] for event in one.events() if event["event"] == "trt_says"]
    assert "[TRT-LLM] [I] *** ***" in lines


def test_the_guard_is_told_of_to_who_shows_its_secret(one: Launch) -> None:
    one.start()
    one.ready()
    for wrong in ({}, {"authorization": "Bearer sesame"}):
        for path in ("/", "/events"):
            assert httpx.get(one.guard_url + path, headers=wrong).status_code == 401
    with httpx.stream("GET", f"{one.guard_url}/events", headers=BEARER, timeout=60) as stream:
        lines = map(json.loads, stream.iter_lines())
        first, second = next(lines), next(lines)
        assert first["boot"] == second["boot"]
        assert first["steps"] >= 1
        assert first["poisoned"] is False
        one.behave(violations=[VIOLATION])
        found = next(line["violation"] for line in lines if "violation" in line)
        assert found.items() >= VIOLATION.items()
        assert found["seq"] == 1
        one.behave()
        assert not [line for line in lines if "violation" in line]  # and the stream ends
    view = one.ready(starts=2)
    assert view["reason"] == "the guard saw a block that wasn't the request's"
    assert view["failures"] == 0


def test_systemd_hears_when_it_is_ready_and_that_it_goes_round(one: Launch) -> None:
    manager = Manager(one.folder)
    try:
        one.start(NOTIFY_SOCKET=manager.path, WATCHDOG_USEC="600000")
        before = manager.hear("READY=1")
        assert "WATCHDOG=1" in before
        assert "STATUS=ready" in manager.hear("STATUS=ready")
        manager.hear("WATCHDOG=1")
        assert one.stop() == 0
        manager.hear("STOPPING=1")
    finally:
        manager.close()
    assert "NOTIFY_SOCKET" not in (one.folder / "environment").read_text()


def test_killed_with_kill_9_it_takes_its_server_along(one: Launch) -> None:
    pids = one.folder / "pids"
    one.behave(forks=str(pids))
    one.start()
    one.ready()
    every = [int(pid) for pid in pids.read_text().split()]
    assert one.stop(signal.SIGKILL) == -signal.SIGKILL
    wait_for(lambda: not any(map(is_alive, every)))
    one.behave()
    one.start()
    one.ready()


def test_one_server_has_one_launcher(one: Launch) -> None:
    one.start()
    one.ready()
    second = one.run("launch", "llama")
    assert second.returncode == 4
    assert "already in use" in second.stderr


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_in_a_container_that_ends_with_it(tmp_path: Path, name: str) -> None:
    with launch(tmp_path, program=f'image = "{IMAGE}"') as one:
        containers = Containers(one, name)
        try:
            one.start("--runner", name)
            view = one.ready()
            cleared, run = containers.asked()
            container = cleared[-1]
            assert cleared == [name, "rm", "-f", container]
            assert run[:4] == [name, "run", "--name", container]
            at = run.index(IMAGE)
            assert run[at + 1 : at + 3] == ["trtllm-serve", f"{one.folder}/checkpoint"]
            guards = next(part for part in run if part.startswith("BULKHEAD_GUARD_DIR="))
            folder = guards.partition("=")[2]
            assert f"{folder}:{folder}" in run
            assert ("--gpus" in run) == (name == "docker")
            assert SECRET not in " ".join(run)
            assert view["guard"]["steps"] >= 1
            first = containers.pid(container)
            os.kill(first, signal.SIGKILL)
            one.ready(starts=2)
            second = containers.pid(container)
            assert one.stop(signal.SIGKILL) == -signal.SIGKILL
            wait_for(lambda: not is_alive(second))
            one.start("--runner", name)
            one.ready()
            third = containers.pid(container)
            assert one.stop() == 0
            assert not is_alive(third)
        finally:
            containers.close()


REFUSED = [
    ("http://10.0.0.1:8000", ("--listen", "0.0.0.0:8000"), "", "a public address"),
    ("https://llm.example.com", ("--listen", "8.8.8.8:8000"), "", "a public address"),
    ("", ("--events", "0.0.0.0:9000"), "", "the guard's events would listen on 0.0.0.0:9000"),
    ("", ("--role", "front"), "", "leave --role out"),
    ("", ("--server", "10.9.9.9:1"), "", "say with --server which to launch"),
    ("", (), "tensor_parallel = 1", "`trt.python` and `trt.image` are both empty"),
    ("", (), 'image = "x"', "isn't on the PATH"),
]


@pytest.mark.parametrize(("url", "words", "program", "reason"), REFUSED)
def test_what_isnt_safe_or_cant_be_is_refused(
    tmp_path: Path, url: str, words: tuple[str, ...], program: str, reason: str
) -> None:
    runner = ("--runner", "podman") if "image" in program else ()
    with launch(tmp_path, program=program, url=url) as one:
        done = one.run("launch", "llama", *words, *runner)
        assert done.returncode == 1
        assert reason in done.stderr
        assert not (one.folder / "environment").exists()
