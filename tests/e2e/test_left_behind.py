"""What lies in the folder of TMPDIR once a Bulkhead has ended, in whatever way."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.stack import BULKHEAD, REPO, Stack, fake_config, running

LOOKING = (["hosts", "list"], ["deployments", "list"], ["trt", "status"], ["doctor"])


@pytest.fixture
def tmp(tmp_path: Path) -> Path:
    """The folder of TMPDIR, of one stack alone."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    return folder


def test_nothing_after_an_end_in_order(tmp: Path, tmp_path: Path) -> None:
    """A worker that was killed before leaves nothing either."""
    with running(tmp_path, fake_config(), environ={"TMPDIR": str(tmp)}) as stack:
        first = stack.worker_pid()
        stack.kill(first)
        until_another_serves(stack, tmp, first)
        (folder,) = tmp.iterdir()
        sockets = {path.name for path in folder.glob("gateway-*.sock")}
        assert sockets == {f"gateway-{stack.worker_pid()}.sock"}
        assert stack.stop() == 0
    assert list(tmp.iterdir()) == []


def test_nothing_after_a_kill_and_a_new_start(tmp: Path, tmp_path: Path) -> None:
    with running(tmp_path, fake_config(), environ={"TMPDIR": str(tmp)}) as stack:
        assert stack.process is not None
        stack.kill(stack.process.pid)
        stack.process.wait()
        assert stack.process.stdout is not None
        stack.process.stdout.close()
        (folder,) = tmp.iterdir()
        (left,) = folder.glob("runs-node-*")
        stack.start()
        assert folder.is_dir()
        assert not left.exists()
        stack.stop()
    assert list(tmp.iterdir()) == []


def test_nothing_after_a_look_where_none_runs(tmp: Path, tmp_path: Path) -> None:
    (tmp_path / "bulkhead.toml").write_text(fake_config())
    places = ["--config", str(tmp_path / "bulkhead.toml"), "--state", str(tmp_path / "state")]
    for command in LOOKING:
        done = subprocess.run(
            [*BULKHEAD, *command, *places],
            capture_output=True,
            text=True,
            cwd=REPO,
            check=False,
            env=os.environ | {"TMPDIR": str(tmp)},
        )
        assert "Traceback" not in done.stderr
        assert "Usage" not in done.stderr
    assert list(tmp.iterdir()) == []


def test_this_session_leaves_its_own_where_pytest_removes_it(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    assert Path(os.environ["TMPDIR"]).is_relative_to(tmp_path_factory.getbasetemp())


def until_another_serves(stack: Stack, tmp: Path, first: int) -> None:
    """Its socket is there, so it has cleared away what the first one left."""
    deadline = time.monotonic() + 60
    while not [path for path in tmp.glob("*/gateway-*.sock") if str(first) not in path.name]:
        assert time.monotonic() < deadline, stack.log.read_text()[-3000:]
        time.sleep(0.05)
