"""A roll-out: what is refused before, what is waited for, and what is done when it fails."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from runtime.deploy import reload, rollout
from runtime.deploy.reload import following, load_current
from runtime.deploy.rollout import Done, NeedsRestart, NotApplied, carry_out, plan
from runtime.deploy.running import Running, Sign
from runtime.deployments import Current, Deployments, Origin
from runtime.settings import Settings, load_text
from runtime.weights import WeightsUnavailable

MODEL = '[[models]]\nid = "echo"\nengine = "fake"\n'


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(reload, "POLL_S", 0.001)
    monkeypatch.setattr(rollout, "LOOK_S", 0.001)
    for name in ("HOST", "PORT", "ADMIN_HOST", "ADMIN_PORT"):
        monkeypatch.delenv(f"BULKHEAD_{name}", raising=False)
    return tmp_path / "state"


def settings(state_dir: Path, text: str) -> Settings:
    return load_text(text + MODEL, Origin(config_path="/etc/b.toml"), state_dir)[0]


def deploy(state_dir: Path, text: str, timeout_s: float = 20) -> Done:
    return carry_out(settings(state_dir, text), by="a test", timeout_s=timeout_s)


def history(state_dir: Path) -> list[tuple[int, int]]:
    return [(d.number, d.restores) for d in Deployments(state_dir).history()]


class Process:
    """Follows, and refuses what has the name `bad`; `runs` is the name that it runs."""

    runs = ""

    async def apply(self, settings: Settings, number: int) -> None:
        if settings.file.name == "bad":
            raise RuntimeError("not with that name")
        self.runs = settings.file.name


@asynccontextmanager
async def process_of(state_dir: Path) -> AsyncIterator[Process]:
    process, sign = Process(), Sign(state_dir, "gateway", dev=False)
    async with following(load_current(state_dir, dev=False), sign, process.apply):
        yield process


def test_where_nothing_runs_it_is_written_down(state_dir: Path) -> None:
    done = deploy(state_dir, 'name = "one"\n')
    assert (done.number, done.is_new, done.running) == (1, True, [])
    again = deploy(state_dir, 'name = "one"\n')
    assert (again.number, again.is_new) == (1, False)


def test_a_plan_tells_what_differs_from_the_current_deployment(state_dir: Path) -> None:
    assert plan(settings(state_dir, "")) is None
    deploy(state_dir, 'name = "one"\n')
    (change,) = plan(settings(state_dir, 'name = "two"\n')) or []
    assert str(change) == '~ name: "one" → "two"'
    assert history(state_dir) == [(1, 0)], "a plan changes nothing"


async def test_it_returns_once_every_process_runs_it(state_dir: Path) -> None:
    deploy(state_dir, 'name = "one"\n')
    async with process_of(state_dir) as process:
        done = await asyncio.to_thread(deploy, state_dir, 'name = "two"\n')
        assert process.runs == "two"
        assert [(p.role, p.number, p.fault) for p in done.running] == [("gateway", 2, "")]


async def test_what_a_process_can_t_apply_is_taken_back(state_dir: Path) -> None:
    deploy(state_dir, 'name = "one"\n')
    async with process_of(state_dir) as process:
        with pytest.raises(NotApplied) as told:
            await asyncio.to_thread(deploy, state_dir, 'name = "bad"\n')
        assert "deployment 2 was not applied: the gateway (pid " in str(told.value)
        assert "RuntimeError: not with that name" in str(told.value)
        assert "deployment 1 is back, as 3" in str(told.value)
        assert process.runs == "one"
        assert history(state_dir) == [(3, 1), (2, 0), (1, 0)]


async def test_a_process_that_says_nothing_is_named(state_dir: Path) -> None:
    """It may be about to apply it, so nothing is taken back."""
    deploy(state_dir, 'name = "one"\n')
    sign = Sign(state_dir, "node", dev=False)
    with pytest.raises(NotApplied, match=r"no word after 0\.05 s from node \(pid \d+\)"):
        deploy(state_dir, 'name = "two"\n', timeout_s=0.05)
    sign.close()
    assert history(state_dir) == [(2, 0), (1, 0)]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("[server]\nport = 9000\n", "server.port"),
        ("[admin]\nport = 0\n", "admin.port"),
    ],
)
def test_what_needs_a_restart_is_refused_while_something_runs(
    state_dir: Path, text: str, path: str
) -> None:
    deploy(state_dir, "")
    sign = Sign(state_dir, "gateway", dev=False)
    with pytest.raises(NeedsRestart, match=f"- {path}\n.*start it again"):
        deploy(state_dir, text)
    sign.close()
    assert history(state_dir) == [(1, 0)]
    assert deploy(state_dir, text).number == 2, "where nothing runs it's the next start's"


def test_a_current_deployment_that_can_t_be_read_is_no_obstacle(state_dir: Path) -> None:
    """Such as one of an older version, or with a secret that's gone."""
    book = Deployments(state_dir)
    with book.writing():
        book.add("[[models]]\nid = 7\n", Origin(), by="a test")
    assert plan(settings(state_dir, "")) is None
    assert deploy(state_dir, "").number == 2


def test_without_its_weights_nothing_is_deployed(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy(state_dir, "")
    monkeypatch.setattr(sys, "executable", "false")  # whoever fetches, fails
    text = '[[models]]\nid = "w"\nengine = "embedded"\nsource = "smollm2-135m-instruct"\n'
    with pytest.raises(WeightsUnavailable, match="the weights of w can't be had"):
        deploy(state_dir, text)
    assert history(state_dir) == [(1, 0)]


def test_who_lacks_a_secret_is_told_where_it_can_come_from(state_dir: Path) -> None:
    """To set it in the environment is what the deployer has done already."""
    deploy(state_dir, 'name = "one"\n')
    sign = Sign(state_dir, "node", dev=False)
    sign.show(Current(number=9, change=9), 1, "a tree of faults", ("UP_KEY",))
    with pytest.raises(NotApplied) as told:
        rollout.wait(state_dir, Current(number=9, change=9), 20)
    sign.close()
    assert f"the node (pid {sign.shown.pid}) doesn't have UP_KEY, which this" in str(told.value)
    assert "`bulkhead secret put UP_KEY`, or start Bulkhead again with" in str(told.value)
    assert "tree" not in str(told.value)


def test_what_differs_is_told_of_the_deployment_that_it_follows(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of the one that was current when somebody else had yet to deploy."""
    deploy(state_dir, 'name = "one"\n')
    fetched: list[int] = []

    def meanwhile(_: Settings) -> None:
        if not fetched:
            fetched.append(1)
            deploy(state_dir, 'name = "theirs"\n')

    monkeypatch.setattr("runtime.weights.ensure", meanwhile)
    done = deploy(state_dir, 'name = "ours"\n')
    assert (done.number, [str(c) for c in done.changes or []]) == (3, ['~ name: "theirs" → "ours"'])


def test_what_must_follow_one_deployment_follows_no_other(state_dir: Path) -> None:
    for name in ("one", "two"):
        deploy(state_dir, f'name = "{name}"\n')
    with pytest.raises(NotApplied, match="deployment 2 was made meanwhile, so nothing was changed"):
        carry_out(settings(state_dir, ""), by="a test", follows=1)
    assert history(state_dir) == [(2, 0), (1, 0)]


@pytest.mark.parametrize("fault", ["", "not with that name"])
def test_a_deployment_that_another_has_replaced_says_so(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Whatever became of the other: it is none of this one's faults."""
    deploy(state_dir, "")
    sign, wait = Sign(state_dir, "gateway", dev=False), rollout.wait

    def meanwhile(state_dir: Path, current: Current, timeout_s: float) -> list[Running]:
        book = Deployments(state_dir)
        with book.writing():
            later = book.add("theirs", Origin(), by="another")
        sign.show(later, later.number, fault)
        return wait(state_dir, current, timeout_s)

    monkeypatch.setattr(rollout, "wait", meanwhile)
    if fault:
        with pytest.raises(NotApplied, match="deployment 2 was superseded by 3 before"):
            deploy(state_dir, 'name = "ours"\n')
        assert history(state_dir)[0] == (3, 0), "and nothing is brought back"
    else:
        done = deploy(state_dir, 'name = "ours"\n')
        assert (done.number, done.superseded_by) == (2, 3)
    sign.close()


async def test_a_pointer_that_is_damaged_is_mended_by_a_deployment(state_dir: Path) -> None:
    """Who had followed the old one follows the new one, however often it had changed."""
    for name in ("one", "two"):
        deploy(state_dir, f'name = "{name}"\n')
    async with process_of(state_dir) as process:
        (state_dir / "deployments" / "current").write_bytes(b"\xff\x00garbage")
        done = await asyncio.to_thread(deploy, state_dir, 'name = "three"\n')
        assert (done.number, done.changes, process.runs) == (3, None, "three")
        done = await asyncio.to_thread(deploy, state_dir, 'name = "four"\n')
        assert (done.number, process.runs) == (4, "four")
