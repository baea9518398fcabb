"""What our processes write while the view has the terminal. Run in a process of its own each time:
the descriptors of this one belong to pytest."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.live import log_pipe
from gateway.live.log_pipe import as_message, parsed
from tests.stack import REPO

SCRIPT = """
import os, subprocess, sys
from pathlib import Path
from gateway.live.log_pipe import LogPipe
shown = []
pipe = LogPipe(Path(sys.argv[1]), shown.append)
pipe.open()
print("to a person")
sys.stderr.write('{"event": "a", "level": "info"}\\n')
sys.stderr.flush()
os.write(2, b"key bh_live_x\\n")
subprocess.run([sys.executable, "-c", "import sys; sys.stderr.write('of a child\\\\n')"])
pipe.close()
os.write(2, b"after\\n")
print(shown)
"""


def test_a_pipe_has_all_descriptors_that_are_the_terminal(tmp_path: Path) -> None:
    """Standard output too, here; what is written after the end goes where it went before."""
    controller, terminal = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "dev.log")],
        stdout=terminal,
        stderr=terminal,
        cwd=REPO,
        check=False,
    )
    os.close(terminal)
    seen = os.read(controller, 65536).decode()
    os.close(controller)
    assert done.returncode == 0, seen
    shown = seen.partition("after")[2]
    for line in ("to a person", "{'event': 'a', 'level': 'info'}", "key bh_live_x", "of a child"):
        assert line in shown
    assert "to a person" not in seen.partition("after")[0]
    logged = (tmp_path / "dev.log").read_text()
    assert logged == '{"event": "a", "level": "info"}\n', "and no key"
    assert (tmp_path / "dev.log").stat().st_mode & 0o777 == 0o600


def test_standard_output_stays_where_a_shell_reads_it(tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "dev.log")],
        stdout=subprocess.PIPE,
        stderr=terminal,
        cwd=REPO,
        text=True,
        check=False,
    )
    os.close(terminal)
    os.close(controller)
    assert done.stdout.startswith("to a person\n")
    assert "'to a person'" not in done.stdout


def test_the_file_is_begun_anew_when_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_pipe, "MAX_FILE_BYTES", 100)
    pipe = log_pipe.LogPipe(tmp_path / "dev.log", lambda _: None)
    lines = [json.dumps({"event": "e", "n": n}).encode() + b"\n" for n in range(10)]
    for line in lines:
        pipe._take(line)
    kept = (tmp_path / "dev.log.1").read_bytes() + (tmp_path / "dev.log").read_bytes()
    assert kept == b"".join(lines[-len(kept.splitlines()) :])
    assert 4 <= len(kept.splitlines()) < 10
    assert (tmp_path / "dev.log").stat().st_size <= 100


def test_a_folder_that_can_not_be_written_stops_nobody(tmp_path: Path) -> None:
    shown: list[Any] = []
    pipe = log_pipe.LogPipe(tmp_path / "nowhere" / "dev.log", shown.append)
    pipe._take(b'{"event": "e"}\n')
    assert shown == [{"event": "e"}]


@pytest.mark.parametrize("raw", [b"text", b"{}", b"{", b'{"level": "info"}', b"[1]", b"", b"\xff"])
def test_what_is_no_log_line_of_ours(raw: bytes) -> None:
    assert parsed(raw) is None


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ({"event": "request", "level": "info", "status": 200}, None),
        ({"event": "host_ready", "level": "info"}, None),
        (
            {"event": "host_ended", "level": "warning", "timestamp": "t", "reason": "exited"},
            "host ended reason=exited",
        ),
        ({"event": "internal_error", "level": "error", "exception": [1]}, "internal error"),
        ({"event": "stopping", "level": "info", "grace": "wait"}, "stopping grace=wait"),
    ],
)
def test_which_lines_a_person_sees(record: dict[str, Any], told: str | None) -> None:
    assert as_message(record) == told
