"""Where sockets live: a private directory, short, and the same whatever the disk is like.

Nothing is left of it once nobody serves, however the last one ended.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runtime.deploy.running import running
from runtime.rundir import held, make, node_socket, runtime_dir
from runtime.state import StateInUse

# A disk without space: nothing can be written. Python is deaf to the signal that comes with it.
FULL = (
    "import resource, sys; from pathlib import Path; from runtime.rundir import make\n"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
    "sys.stdout.write(str(make(Path(sys.argv[1]))))"
)
HOLDS = """
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from runtime.deploy.running import running
from runtime.rundir import held, runtime_dir
state_dir = Path(sys.argv[1])
with held(state_dir):
    (runtime_dir(state_dir) / "other.sock").touch()
    print("held", flush=True)
    sys.stdin.readline()
"""
COMES_AND_GOES = """
import os, sys
from pathlib import Path
from runtime.deploy.running import running
from runtime.rundir import held, runtime_dir
state_dir = Path(sys.argv[1])
for _ in range(150):
    with held(state_dir):
        own = runtime_dir(state_dir) / f"{os.getpid()}.sock"
        own.touch()
        own.unlink()
"""


@pytest.fixture
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder that is this test's own."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_it_is_the_same_one_on_a_full_disk(tmp: Path) -> None:
    """A worker that comes up then must find the node, and a command what runs."""
    state_dir = tmp / "state"
    found = make(state_dir)
    looked = subprocess.run(
        [sys.executable, "-c", FULL, str(state_dir)], capture_output=True, text=True, check=False
    )
    assert (looked.stdout, looked.stderr) == (str(found), "")


def test_it_is_the_same_one_in_a_folder_that_can_t_be_written_to(tmp: Path) -> None:
    found = make(tmp / "state")
    tmp.chmod(0o500)
    try:
        assert make(tmp / "state") == found
    finally:
        tmp.chmod(0o700)


def test_a_folder_that_is_not_there_is_told_and_no_other_is_taken(
    tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp / "gone"))
    with pytest.raises(FileNotFoundError, match="the folder of TMPDIR must be there") as told:
        make(tmp / "state")
    assert Path(told.value.filename).parent == tmp / "gone"


def test_without_tmpdir_it_is_in_tmp(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TEMP", "TMP"):
        monkeypatch.setenv(name, str(tmp))
    monkeypatch.setenv("TMPDIR", "")
    found = make(tmp / "state")
    monkeypatch.delenv("TMPDIR")
    assert make(tmp / "state") == found
    found.rmdir()
    assert found.parent == Path("/tmp")


def test_a_runtime_directory_is_private_and_the_same_again(tmp: Path) -> None:
    first = make(tmp / "state")
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
    assert make(tmp / "state") == first
    assert make(tmp / "other") != first


def test_an_open_directory_is_refused(tmp: Path) -> None:
    path = make(tmp / "state")
    for mode in (0o755, 0o770, 0o701):
        path.chmod(mode)
        with pytest.raises(StateInUse, match="not a private directory"):
            make(tmp / "state")


def test_a_directory_of_another_user_is_refused(tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever made it first could swap our sockets."""
    uid = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: uid)  # the directory made below is not ours, then
    with pytest.raises(StateInUse):
        make(tmp / "state")


def test_a_link_or_a_file_in_its_place_is_refused(tmp: Path) -> None:
    path = make(tmp / "state")
    path.rmdir()
    (tmp / "real").mkdir(mode=0o700)
    path.symlink_to(tmp / "real")
    with pytest.raises(StateInUse):
        make(tmp / "state")
    path.unlink()
    path.touch(mode=0o600)
    with pytest.raises(StateInUse):
        make(tmp / "state")


def test_a_socket_s_path_fits_whatever_the_state_folder(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 200) / ("y" * 200)
    for path in (node_socket(deep), node_socket(deep).parent / "host-999-999999.sock"):
        assert len(os.fsencode(path)) < 108


def test_who_only_looks_makes_none(tmp: Path) -> None:
    assert not runtime_dir(tmp / "state").exists()
    assert running(tmp / "state") == []
    assert list(tmp.iterdir()) == []


def test_it_is_gone_with_whatever_was_left_in_it(tmp: Path) -> None:
    with held(tmp / "state"):
        path = runtime_dir(tmp / "state")
        (path / "gateway-7.sock").touch()
        (path / "tls-7-1").mkdir()
        (path / "tls-7-1" / "key.pem").touch()
    assert list(tmp.iterdir()) == []


def test_what_killed_ones_left_is_cleared_by_the_first_to_come(tmp: Path) -> None:
    with holder(tmp / "state") as other:
        other.kill()
    assert files(tmp) == ["other.sock"]
    (make(tmp / "state") / "link").symlink_to(tmp)
    with held(tmp / "state"):
        assert files(tmp) == []
    assert list(tmp.iterdir()) == []


def test_what_another_has_put_there_stays_until_it_ends(tmp: Path) -> None:
    with holder(tmp / "state") as other:
        with held(tmp / "state"):
            assert files(tmp) == ["other.sock"]
        assert files(tmp) == ["other.sock"]
        other.communicate("go\n")
    assert list(tmp.iterdir()) == []


def test_who_begins_while_the_last_ends_has_it(tmp: Path) -> None:
    """Many, over and over: nobody's file is cleared by another, and none is left without it."""
    command = [sys.executable, "-c", COMES_AND_GOES, str(tmp / "state")]
    every = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(6)]
    assert [(one.communicate()[1], one.returncode) for one in every] == [("", 0)] * 6
    assert list(tmp.iterdir()) == []


def test_one_that_is_not_ours_is_not_held(tmp: Path) -> None:
    make(tmp / "state").chmod(0o755)
    with pytest.raises(StateInUse), held(tmp / "state"):
        pass


def test_without_the_folder_of_tmpdir_none_is_held(
    tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp / "gone"))
    told = pytest.raises(FileNotFoundError, match="the folder of TMPDIR must be there")
    with told, held(tmp / "state"):
        pass


@contextmanager
def holder(state_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds it, and has a file in it."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(state_dir)], stdin=pipe, stdout=pipe, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process


def files(tmp: Path) -> list[str]:
    return [path.name for path in runtime_dir(tmp / "state").iterdir()]
