"""Where sockets live: a private directory, short, and the same whatever the disk is like."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.rundir import node_socket, runtime_dir
from runtime.state import StateInUse

# A disk without space: nothing can be written. Python is deaf to the signal that comes with it.
FULL = (
    "import resource, sys; from pathlib import Path; from runtime.rundir import runtime_dir\n"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
    "sys.stdout.write(str(runtime_dir(Path(sys.argv[1]))))"
)


@pytest.fixture
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder that is this test's own."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_it_is_the_same_one_on_a_full_disk(tmp: Path) -> None:
    """A worker that comes up then must find the node, and a command what runs."""
    state_dir = tmp / "state"
    found = runtime_dir(state_dir)
    looked = subprocess.run(
        [sys.executable, "-c", FULL, str(state_dir)], capture_output=True, text=True, check=False
    )
    assert (looked.stdout, looked.stderr) == (str(found), "")


def test_it_is_the_same_one_in_a_folder_that_can_t_be_written_to(tmp: Path) -> None:
    found = runtime_dir(tmp / "state")
    tmp.chmod(0o500)
    try:
        assert runtime_dir(tmp / "state") == found
    finally:
        tmp.chmod(0o700)


def test_a_folder_that_is_not_there_is_told_and_no_other_is_taken(
    tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp / "gone"))
    with pytest.raises(FileNotFoundError, match="the folder of TMPDIR must be there") as told:
        runtime_dir(tmp / "state")
    assert Path(told.value.filename).parent == tmp / "gone"


def test_without_tmpdir_it_is_in_tmp(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TEMP", "TMP"):
        monkeypatch.setenv(name, str(tmp))
    monkeypatch.setenv("TMPDIR", "")
    found = runtime_dir(tmp / "state")
    monkeypatch.delenv("TMPDIR")
    assert runtime_dir(tmp / "state") == found
    found.rmdir()
    assert found.parent == Path("/tmp")


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
