"""The state folder: one owner, private sockets, paths that fit."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from runtime.state import StateInUse, node_socket, own, runtime_dir

HOLD = (
    "import sys; from pathlib import Path; from runtime.state import own;"
    "held = own(Path(sys.argv[1]), 'node'); print('held', flush=True); sys.stdin.read()"
)


@pytest.fixture
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder that is this test's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


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


def test_a_runtime_directory_is_private_and_the_same_again(tmp: Path) -> None:
    first = runtime_dir(tmp / "state")
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
    assert runtime_dir(tmp / "state") == first
    assert runtime_dir(tmp / "other") != first


def test_an_open_directory_is_refused(tmp: Path) -> None:
    path = runtime_dir(tmp / "state")
    for mode in (0o755, 0o770, 0o701):
        path.chmod(mode)
        with pytest.raises(StateInUse, match="not a private directory"):
            runtime_dir(tmp / "state")


def test_a_directory_of_another_user_is_refused(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever made it first could swap our sockets."""
    uid = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: uid)  # the directory made below is not ours, then
    with pytest.raises(StateInUse):
        runtime_dir(tmp / "state")


def test_a_link_or_a_file_in_its_place_is_refused(tmp: Path) -> None:
    path = runtime_dir(tmp / "state")
    path.rmdir()
    (tmp / "real").mkdir(mode=0o700)
    path.symlink_to(tmp / "real")
    with pytest.raises(StateInUse):
        runtime_dir(tmp / "state")
    path.unlink()
    path.touch(mode=0o600)
    with pytest.raises(StateInUse):
        runtime_dir(tmp / "state")


def test_a_socket_s_path_fits_whatever_the_state_folder(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 200) / ("y" * 200)
    for path in (node_socket(deep), node_socket(deep).parent / "host-999-999999.sock"):
        assert len(os.fsencode(path)) < 108
    node_socket(deep).parent.rmdir()
