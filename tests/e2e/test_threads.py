"""A worker's threads: the server's don't interrupt the one that answers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.stack import running
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets threads be patient"),
]

CONFIG = """
[[models]]
id = "far"
engine = "openai"
url = "http://127.0.0.1:9/v1"
cache = "salted"
price = { input = "0.10", output = "0.30" }
"""


def test_only_the_servers_own_threads_are_patient(tmp_path: Path) -> None:
    with running(tmp_path, CONFIG) as stack:
        worker = stack.worker_pid()
        wait_for(lambda: os.sched_getscheduler(worker) == os.SCHED_OTHER)  # once it serves
        names = _threads(worker)
        servers = [thread for thread, name in names.items() if name.startswith("tokio")]
        assert servers, f"granian's threads have other names by now: {names}"
        assert {os.sched_getscheduler(thread) for thread in servers} == {os.SCHED_BATCH}


def _threads(pid: int) -> dict[int, str]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return {int(task.name): (task / "comm").read_text().strip() for task in tasks}
