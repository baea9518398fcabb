"""Standard streams that are closed, full, or with nobody at the other end: never a traceback."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from gateway.cli import ending, streams
from tests.stack import BULKHEAD, REPO, fake_config

# One of each kind of writer: click's help, a table, a document, raw bytes, lines that come slowly.
COMMANDS = ("--help", "completion bash", "keys create a", "tenants list", "usage export", "doctor")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("streams")
    (made / "bulkhead.toml").write_text(fake_config())
    assert run(made, "tenants create a", "").returncode == 0
    return made


def run(folder: Path, words: str, redirected: str) -> subprocess.CompletedProcess[str]:
    """A command under a shell's redirection."""
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {redirected}', "sh", *BULKHEAD, *words.split()],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(REPO)},
        check=False,
    )


@pytest.mark.parametrize("words", COMMANDS)
@pytest.mark.parametrize(
    ("redirected", "why"),
    [(">&-", "Bad file descriptor"), (">/dev/full", "No space left on device")],
)
def test_an_answer_that_cant_be_written_is_a_fault(
    folder: Path, words: str, redirected: str, why: str
) -> None:
    done = run(folder, words, redirected)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith(f"Error: standard output: {why}\n")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("redirected", ["2>&-", "2>/dev/full"])
def test_a_notice_that_cant_be_written_stops_nothing(folder: Path, redirected: str) -> None:
    """The key is shown only once: it isn't lost because a sentence beside it is."""
    done = run(folder, "keys create a", redirected)
    assert done.returncode == 0
    assert done.stdout.startswith("bh_live_")
    assert run(folder, "nonsense", redirected).returncode == 2


@pytest.mark.parametrize("redirected", [">&- 2>&-", ">/dev/full 2>/dev/full", "<&- >&- 2>&-"])
def test_all_of_them_at_once(folder: Path, redirected: str) -> None:
    done = run(folder, "check", redirected)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_a_closed_input_is_an_empty_one(folder: Path) -> None:
    assert run(folder, "tenants list", "<&-").returncode == 0
    done = run(folder, "secret put A", "<&-")
    assert done.returncode == 1
    assert "a secret has 1 to" in done.stderr


@pytest.mark.parametrize("words", [*COMMANDS, "check --print-schema"])
def test_a_reader_that_leaves_is_told_nothing(folder: Path, words: str) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [*BULKHEAD, *words.split()],
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(REPO)},
        check=False,
    )
    os.close(write_end)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr


def test_what_a_notice_can_t_say_counts_as_said() -> None:
    with streams.Notices("/dev/full", "w") as full:
        assert full.write(b"abc") == 3
    with streams.Output("/dev/full", "w") as full, pytest.raises(OSError, match="standard output"):
        full.write(b"abc")


def test_what_a_thread_cant_write_is_told_as_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    fault = OSError(28, "No space left on device", streams.NAME)
    ending._in_thread(threading.ExceptHookArgs((OSError, fault, None, None)))
    assert capsys.readouterr().err == "Error: standard output: No space left on device\n"
