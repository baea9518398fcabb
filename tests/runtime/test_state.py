"""The state folder: one owner, and private."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.state import StateInUse, Stopping, own, own_when_left, say_stopping

HOLD = (
    "import sys; from pathlib import Path; from runtime.state import own;"
    "held = own(Path(sys.argv[1]), 'node'); print('held', flush=True); sys.stdin.read()"
)


def test_a_second_owner_is_refused_with_the_first_one_s_pid(tmp_path: Path) -> None:
    with own(tmp_path, "node"):
        with pytest.raises(StateInUse, match=rf"node \(pid {os.getpid()}\)"):
            own(tmp_path, "node")
        own(tmp_path, "gateway").close()  # roles are apart
    own(tmp_path, "node").close()


def test_a_killed_owner_leaves_nothing_behind(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout
    assert holder.stdin
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StateInUse, match=f"pid {holder.pid}"):
            own(tmp_path, "node")
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
        holder.stdin.close()
    own(tmp_path, "node").close()


def test_one_that_is_being_stopped_is_waited_for(tmp_path: Path) -> None:
    held = own(tmp_path, "node")
    say_stopping(tmp_path)
    with pytest.raises(Stopping, match=rf"pid {os.getpid()}\) that is stopping; try again"):
        own_when_left(tmp_path, "node", wait_s=-1)
    next_one = own_when_left(tmp_path, "node", wait_s=60, sleep=lambda _: held.close())
    with next_one, pytest.raises(StateInUse, match="already in use by a running"):
        own(tmp_path, "node")


def test_one_that_runs_is_not_waited_for(tmp_path: Path) -> None:
    with own(tmp_path, "node"), pytest.raises(StateInUse, match="already in use by a running"):
        own_when_left(tmp_path, "node", wait_s=60, sleep=lambda _: pytest.fail("it waited"))


def test_nobody_says_of_another_that_it_stops(tmp_path: Path) -> None:
    (tmp_path / "node.lock").write_text("1\n")
    say_stopping(tmp_path)
    assert (tmp_path / "node.lock").read_text() == "1\n"


def test_the_state_folder_is_made_private(tmp_path: Path) -> None:
    own(tmp_path / "a" / "state", "node").close()
    assert stat.S_IMODE((tmp_path / "a" / "state").stat().st_mode) == 0o700


def test_root_writes_nothing_into_the_folder_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.getuid() == 0:
        os.chown(tmp_path, 12345, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(StateInUse, match="run this as that user"):
        own(tmp_path, "node")
    assert list(tmp_path.iterdir()) == []
