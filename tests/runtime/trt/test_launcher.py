"""A launcher with real processes: slow starts, hangs, deaths, guards that fail, ends in order."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from runtime.trt.view import TrtState
from tests.runtime.trt.serving import HASTY, QUICK, is_alive, launched
from tests.stack import REPO
from tests.waiting import until

HANG: dict[str, Any] = {"hangs": {}}


@pytest.fixture(autouse=True)
def _short_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))


async def test_it_is_ready_once_a_token_has_come_and_its_guard_counts(tmp_path: Path) -> None:
    async with launched(tmp_path, faults={"slow_first": {"seconds": 0.5}}) as one:
        before = one.view
        assert (before.state, before.token_at, before.guard) == (TrtState.STARTING, 0, None)
        view = await one.ready()
        assert view.token_at
        assert view.guard
        assert view.guard.steps >= 1
        assert is_alive(view.pid)
        await until(lambda: one.view.token_at > view.token_at)
        assert one.view.starts == 1
    assert not is_alive(view.pid)
    assert one.view.state is TrtState.STOPPED
    assert not (tmp_path / "guards").exists()


async def test_healthy_without_ever_a_token_is_never_ready(tmp_path: Path) -> None:
    patience = replace(HASTY, start_s=3)
    async with launched(tmp_path, faults=HANG, patience=patience) as one:
        view = await one.ended()
    assert view.reason == "no token 3 s after its start: no token in 1 s"
    assert view.token_at == 0


async def test_what_dies_at_its_start_is_tried_again_and_then_seldom(tmp_path: Path) -> None:
    says = "[TRT-LLM] [E] no GPU with sesame-sesame"
    async with launched(tmp_path, exits_s=0, says=says) as one:
        await until(lambda: one.view.state is TrtState.FAILED)
        view = one.view
        assert view.failures == 3
        assert view.reason == (
            "exited with 7 before a token came; it said: [TRT-LLM] [E] no GPU with ***"
        )
        one.behave()
        await one.ready(starts=4)


async def test_what_dies_while_it_serves_is_started_again(tmp_path: Path) -> None:
    async with launched(tmp_path) as one:
        first = await one.ready()
        os.kill(first.pid, signal.SIGKILL)
        second = await one.ready(starts=2)
        assert second.reason.startswith("was killed")
        assert second.pid != first.pid
        assert (second.guard and second.guard.boot) != (first.guard and first.guard.boot)


async def test_what_loses_its_executor_under_load_is_started_again(tmp_path: Path) -> None:
    """It interrupts itself, in the middle of the answers that run."""
    async with launched(tmp_path) as one, httpx.AsyncClient(timeout=60) as client:
        first = await one.ready()
        url = f"{one.bind.url}/v1/chat/completions"
        body = {"model": "llama", "messages": [{"role": "user", "content": "x"}], "max_tokens": 900}
        one.fail(exits={"after": 300})
        load = [asyncio.ensure_future(client.post(url, json=body)) for _ in range(8)]
        view = await one.ready(starts=2)
        # whichever is noticed first: that it closes its door, or that it ends
        assert view.reason.startswith(("exited with ", "no connection", "no answer "))
        assert not is_alive(first.pid)
        await asyncio.gather(*load, return_exceptions=True)


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_hang_behind_a_healthy_face_is_ended(tmp_path: Path, guarded: bool) -> None:
    async with launched(tmp_path, guarded=guarded, patience=HASTY) as one:
        first = await one.ready()
        one.fail(hangs={})
        health = httpx.get(f"{one.bind.url}/health", timeout=30)
        assert health.status_code == 200
        second = await one.ready(starts=2)
        assert second.reason == "no token in 1 s"
        assert not is_alive(first.pid)


async def test_503_for_ever_from_a_process_that_never_exits_is_ended(tmp_path: Path) -> None:
    async with launched(tmp_path) as one:
        first = await one.ready()
        one.fail(is_down={})
        second = await one.ready(starts=2)
        assert second.reason == "it answers 503"
        assert not is_alive(first.pid)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("no_tokens", "it answers without a token"), ("cuda_error", "it answers 400")],
)
async def test_an_answer_that_is_none_is_a_fault(tmp_path: Path, fault: str, reason: str) -> None:
    async with launched(tmp_path) as one:
        await one.ready()
        one.fail(**{fault: {}})
        assert (await one.ready(starts=2)).reason == reason


async def test_a_long_line_is_no_hang_while_the_guard_counts(tmp_path: Path) -> None:
    """It computes for others, and what we ask for waits: that is borne only for so long."""
    patience = replace(QUICK, within_s=0.2, starved_s=2)
    body = {"model": "llama", "messages": [{"role": "user", "content": "x"}], "max_tokens": 8000}
    async with (
        launched(tmp_path, patience=patience) as one,
        httpx.AsyncClient(timeout=60) as client,
    ):
        await one.ready()
        url = f"{one.bind.url}/v1/chat/completions"
        others = [asyncio.ensure_future(client.post(url, json=body)) for _ in range(4)]
        await until(lambda: one.told()["in_hand"] >= 4)
        one.fail(slow_first={"seconds": 60})
        view = await one.ready(starts=2)
        assert view.reason.startswith("no token of ours in ")
        assert view.reason.endswith(" s, though it computes")
        await asyncio.gather(*others, return_exceptions=True)


@pytest.mark.parametrize(
    ("guard", "reason"),
    [
        ("absent", "it answers, and no guard has begun in it"),
        ("flat", "it answers, and its guard counts no step"),
        ("poisoned", "it answers, and its guard has failed"),
    ],
)
async def test_no_server_is_ready_without_its_guard(
    tmp_path: Path, guard: str, reason: str
) -> None:
    async with launched(tmp_path, guard=guard) as one:
        view = await one.ended()
        assert view.reason.startswith(reason)
        assert view.token_at == 0


@pytest.mark.parametrize(
    ("guard", "reason"),
    [
        ("flat", "tokens come, and the guard counts no step"),
        ("poisoned", "the guard has failed"),
    ],
)
async def test_a_guard_that_dies_takes_its_server_with_it(
    tmp_path: Path, guard: str, reason: str
) -> None:
    async with launched(tmp_path) as one:
        await one.ready()
        one.behave(guard=guard)
        view = await one.ended()
        assert view.reason.startswith(reason)
        one.behave()
        await one.ready(starts=view.starts + 1)


async def test_a_violation_lets_answers_end_and_replaces_the_server(tmp_path: Path) -> None:
    async with launched(tmp_path) as one:
        await one.ready()
        one.behave(violations=[{"step": 3, "request": 5, "kind": "foreign", "block": 9}])
        await until(lambda: one.view.reason)
        assert one.view.reason == "the guard saw a block that wasn't the request's"
        one.behave()
        view = await one.ready(starts=2)
        assert (view.failures, view.guard and view.guard.violations) == (0, 0)


async def test_a_violation_before_the_first_token_is_never_ready(tmp_path: Path) -> None:
    """A server that others may reach already is let end what runs there, and replaced."""
    seen = [{"step": 1, "request": 5, "kind": "foreign", "block": 9}]
    async with launched(tmp_path, violations=seen) as one:
        view = await one.ended()
        assert view.reason == "the guard saw a block that wasn't the request's"
        assert (view.token_at, view.failures) == (0, 1), "a start that failed: the next one waits"
        one.behave()
        await one.ready(starts=view.starts + 1)


async def test_what_runs_on_is_watched_until_it_has_ended(tmp_path: Path) -> None:
    """No hook stops it in older releases: only a gateway does, if it is told."""
    patience = replace(QUICK, drain_s=600)
    async with launched(tmp_path, ignores_term=True, patience=patience) as one:
        await one.ready()
        seen = [{"step": 3, "request": 5, "kind": "foreign", "block": 9}]
        one.behave(violations=seen, ignores_term=True)
        await until(lambda: one.view.state is TrtState.DRAINING)
        feed = one.launcher.feed()
        assert feed is not None
        assert (feed.is_leaving, feed.is_over) == (True, False)
        one.behave(violations=[*seen, seen[0] | {"request": 6}], ignores_term=True)
        await until(lambda: [told["request"] for told in feed.violations] == [5, 6])


async def test_nothing_runs_on_once_nobody_watches_it(tmp_path: Path) -> None:
    patience = replace(QUICK, drain_s=600)
    async with launched(tmp_path, ignores_term=True, patience=patience) as one:
        view = await one.ready()
        one.launcher.stop.say()
        await until(lambda: one.view.state is TrtState.DRAINING)
        one.behave(guard="poisoned", ignores_term=True)
        await until(lambda: one.view.state is TrtState.STOPPED)
        assert not is_alive(view.pid)


async def test_told_to_stop_it_lets_what_runs_end(tmp_path: Path) -> None:
    async with launched(tmp_path) as one:
        view = await one.ready()
        one.fail(slow_first={"seconds": 1.5})
        body = {"model": "llama", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
        async with httpx.AsyncClient(timeout=60) as client:
            url = f"{one.bind.url}/v1/chat/completions"
            answer = asyncio.ensure_future(client.post(url, json=body))
            await until(lambda: one.told()["in_hand"])
            one.launcher.stop.say()
            await until(lambda: one.view.state is TrtState.DRAINING)
            assert (await answer).status_code == 200
        await until(lambda: one.view.state is TrtState.STOPPED)
    assert not is_alive(view.pid)


async def test_what_ignores_sigterm_is_killed_when_its_time_is_over(tmp_path: Path) -> None:
    patience = replace(QUICK, drain_s=0.5)
    async with launched(tmp_path, ignores_term=True, patience=patience) as one:
        view = await one.ready()
        one.launcher.stop.say()
        await until(lambda: one.view.state is TrtState.STOPPED)
        assert not is_alive(view.pid)


async def test_told_twice_it_waits_for_nobody(tmp_path: Path) -> None:
    patience = replace(QUICK, drain_s=600)
    async with launched(tmp_path, ignores_term=True, patience=patience) as one:
        view = await one.ready()
        one.launcher.stop.say()
        await until(lambda: one.view.state is TrtState.DRAINING)
        assert is_alive(view.pid)
        one.launcher.stop.say()
        await until(lambda: one.view.state is TrtState.STOPPED)
        assert not is_alive(view.pid)


async def test_nothing_that_it_forked_is_left(tmp_path: Path) -> None:
    """Neither what left its process group, nor what ignores SIGTERM, nor what it had orphaned."""
    pids = tmp_path / "pids"
    async with launched(tmp_path, forks=str(pids)) as one:
        await one.ready()
        first = [int(pid) for pid in pids.read_text().split()]
        assert all(map(is_alive, first))
        os.kill(first[0], signal.SIGKILL)
        await one.ready(starts=2)
        assert not any(map(is_alive, first))
        second = [int(pid) for pid in pids.read_text().split()]
    assert not any(map(is_alive, second))


async def test_a_program_that_isnt_there_is_a_reason(tmp_path: Path) -> None:
    async with launched(tmp_path, program="/no/such/python") as one:
        view = await one.ended()
        assert view.reason == "/no/such/python can't be run: No such file or directory"
    async with launched(tmp_path, program="/no/such/trtllm-serve") as one:
        assert "is TensorRT-LLM in the environment" in (await one.ended()).reason


async def test_a_warden_that_is_killed_takes_all_with_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    async with launched(tmp_path, forks=str(pids)) as one:
        await one.ready()
        every = [int(pid) for pid in pids.read_text().split()]
        server = every[0]
        warden = int(Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(warden, signal.SIGKILL)
        view = await one.ready(starts=2)
        assert view.reason == "lost its warden, which was killed"
        assert not any(map(is_alive, every))


async def test_a_launcher_that_is_killed_takes_all_with_it(tmp_path: Path) -> None:
    """Nobody is left to end anything but the warden, whose stdin ends."""
    pids = tmp_path / "pids"
    script = f"""
import asyncio, pathlib
from tests.runtime.trt.serving import launched
async def main():
    async with launched(pathlib.Path({str(tmp_path)!r}), forks={str(pids)!r}) as one:
        await one.ready()
        print("ready", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""
    launcher = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script), cwd=REPO, stdout=asyncio.subprocess.PIPE
    )
    assert launcher.stdout
    while b"ready\n" not in (line := await launcher.stdout.readline()):
        assert line
    every = [int(pid) for pid in pids.read_text().split()]
    assert all(map(is_alive, every))
    launcher.kill()
    await launcher.wait()
    await until(lambda: not any(map(is_alive, every)))
