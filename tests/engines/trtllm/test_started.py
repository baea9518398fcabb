"""What was rendered starts what stands in for trtllm-serve, by the very line that is told."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx

from engines.trtllm.commands import Served
from engines.trtllm.rendered import rendered, write
from engines.trtllm.settings import TrtSettings
from tests.stack import REPO, free_port

START_S = 60


def test_the_line_of_command_txt_starts_a_server_with_the_file_beside_it(tmp_path: Path) -> None:
    port = free_port()
    program = tmp_path / "it's a venv" / "trtllm-serve"
    program.parent.mkdir()
    run = f'exec {sys.executable} -m tests.trtllm_serve "$@"'
    program.write_text(f"#!/bin/sh\ncd {shlex.quote(str(REPO))}\n{run}\n")
    program.chmod(0o755)
    trt = TrtSettings(
        guard=False, python=str(program.parent / "python"), block_reuse=False, max_batch_size=8
    )
    model = Served("llama", "/models/a llama", (f"http://127.0.0.1:{port}/v1",), trt)
    folder = tmp_path / "rendered: here"
    found = rendered(model, str(folder))
    write(found, folder)
    (line,) = [
        line
        for line in (folder / "command.txt").read_text().splitlines()
        if line[:1] not in ("", "#")
    ]
    with subprocess.Popen(["sh", "-c", f"exec env {line}"], start_new_session=True) as server:
        try:
            assert answered(port, server)["id"].endswith("a llama")
        finally:
            os.killpg(server.pid, signal.SIGKILL)


def answered(port: int, server: subprocess.Popen[bytes]) -> dict[str, str]:
    """The model that it lists."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert server.poll() is None, "it ended as it started"
        try:
            listed = httpx.get(f"http://127.0.0.1:{port}/v1/models").json()
        except httpx.HTTPError:
            time.sleep(0.05)
        else:
            model: dict[str, str] = listed["data"][0]
            return model
    raise AssertionError("it didn't answer in time")
