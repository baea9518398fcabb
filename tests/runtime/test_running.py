"""Who runs: told by locks, so the dead are never taken for the living."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from runtime.deploy.running import Role, Sign, Trouble, running, summed_up, troubles
from runtime.deployments import Current
from runtime.rundir import runtime_dir

NOW = Current(number=3, change=7)


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path / "state"


def files(state_dir: Path) -> list[str]:
    return [path.name for path in runtime_dir(state_dir).iterdir()]


def test_a_process_is_seen_from_its_start_to_its_end(state_dir: Path) -> None:
    assert running(state_dir) == []
    sign = Sign(state_dir, "gateway", dev=True)
    (seen,) = running(state_dir)
    assert (seen.role, seen.dev, seen.number, seen.change) == ("gateway", True, 0, 0)
    sign.show(NOW, 3)
    assert running(state_dir) == [sign.shown]
    sign.show(Current(number=4, change=8), 3, "no such secret")
    (seen,) = running(state_dir)
    assert (seen.number, seen.change, seen.fault) == (3, 8, "no such secret")
    sign.close()
    assert running(state_dir) == []
    assert files(state_dir) == []
    sign.close()


def test_node_and_gateway_of_one_process_are_two(state_dir: Path) -> None:
    signs = [Sign(state_dir, "node", dev=False), Sign(state_dir, "gateway", dev=False)]
    assert [process.role for process in running(state_dir)] == ["gateway", "node"]
    for sign in signs:
        sign.close()


def test_of_two_processes_troubles_the_last_is_told(state_dir: Path) -> None:
    """Two gateways, as while one takes over from another."""
    roles: tuple[Role, Role] = ("node", "gateway")  # of one process a role is shown once
    old, new = (Sign(state_dir, role, dev=False) for role in roles)
    old.tell({"m": (trouble("later", 8),), "n": (trouble("only", 1),)})
    new.tell({"m": (trouble("earlier", 7), trouble("another server", 6, "http://b"))})
    found = troubles(state_dir)
    told = {model: [(url, one.reason) for url, one in by.items()] for model, by in found.items()}
    assert told == {
        "m": [("http://b", "another server"), ("http://a", "later")],
        "n": [("http://a", "only")],
    }
    old.close()
    assert {*troubles(state_dir)["m"].values()} == {*new.shown.troubles["m"]}
    new.close()


def trouble(reason: str, at: float, url: str = "http://a", *, is_down: bool = False) -> Trouble:
    return Trouble(url=url, reason=reason, at=at, is_down=is_down)


def test_a_model_is_down_when_all_of_its_servers_are() -> None:
    known = {
        "http://a": trouble("x", 3, is_down=True),
        "http://b": trouble("y", 9, "http://b", is_down=True),
    }
    last = summed_up(["http://a", "http://b"], known)
    assert last == trouble("y", 9, "http://b", is_down=True)
    third = summed_up(["http://a", "http://b", "http://c"], known)
    assert third == trouble("y", 9, "http://b")
    assert summed_up(["http://c"], known) is None


def test_a_killed_process_is_gone_and_its_file_with_it(state_dir: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from runtime.deploy.running import *\n"
        "sign = Sign(Path(sys.argv[2]), 'node', dev=False); print('ready', flush=True)\n"
        "sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(state_dir.parent), str(state_dir)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with child:
        assert child.stdout
        assert child.stdout.readline() == "ready\n"
        assert [process.pid for process in running(state_dir)] == [child.pid]
        child.kill()
        child.wait()
        assert running(state_dir) == []
        assert files(state_dir) == []


def test_looking_while_it_changes_never_misses_it(state_dir: Path) -> None:
    """A file that is replaced between reading and asking for its lock isn't a dead one's."""
    sign = Sign(state_dir, "gateway", dev=False)
    code = (
        "import sys; from pathlib import Path; from runtime.deploy.running import *\n"
        "print(min(len(running(Path(sys.argv[2]))) for _ in range(3000)))"
    )
    looking = subprocess.Popen(
        [sys.executable, "-c", code, str(state_dir.parent), str(state_dir)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    change = 0
    while looking.poll() is None:
        change += 1
        sign.show(Current(number=1, change=change), 1)
    with looking:
        assert looking.stdout
        assert looking.stdout.read() == "1\n"
    sign.close()
