"""What a request event costs the worker that sends it, in µs: with nobody there, and with somebody.

The event is as large as a chat request's. `read` has a listener that keeps up, in a process of its
own; `stuck` one that never reads, so that every event is dropped once the queues are full.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.report import at_most, emit, median, table
from gateway.clock import SYSTEM_CLOCK
from gateway.events import EventSender

EVENTS, ROUNDS = 20_000, 5
NOBODY_US = 10.0  # a thousandth of a short request
EVENT: dict[str, Any] = {
    "request_id": "req_01M8N91DZJ7WHFKN9TNGS4YN6Q",
    "method": "POST",
    "path": "/v1/chat/completions",
    "status": 200,
    "duration_ms": 1234.5,
    "tenant": "tn_01M8N91CW7H10Q9SC8JWF9WFP2",
    "tenant_name": "acme",
    "key": "key_01M8N91CWC5QCYZJ15ANN38EHM",
    "model": "smollm2-135m-instruct",
    "stream": True,
    "outcome": "completed",
    "host": "host-59f9e2-1",
    "ttft_ms": 120.3,
    "usage_source": "upstream_final",
    "input_tokens": 128,
    "cached_input_tokens": 64,
    "output_tokens": 64,
}
READER = """
import socket, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
sock.bind(sys.argv[1])
print("ready", flush=True)
while True:
    sock.recv(65536)
"""


async def cost_us(path: Path) -> float:
    """Of one event, over many; others have their turn after every ten, as in a busy worker."""
    sender = EventSender(path, SYSTEM_CLOCK)
    spent = 0.0
    for _ in range(EVENTS // 10):
        began = time.perf_counter()
        for _ in range(10):
            sender.send(EVENT)
        spent += time.perf_counter() - began
        await asyncio.sleep(0)
    sender.close()
    return spent / EVENTS * 1e6


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """A process that keeps up."""
    command = [sys.executable, "-c", READER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield
        process.kill()


@contextmanager
def stuck(path: Path) -> Iterator[None]:
    """Somebody who never reads."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as sock:
        sock.bind(str(path))
        yield


def main() -> None:
    """Measure, and print."""
    taken: dict[str, list[float]] = {"nobody": [], "read": [], "stuck": []}
    for turn in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{turn}.sock"
            taken["nobody"].append(asyncio.run(cost_us(path)))
            with reading(path):
                taken["read"].append(asyncio.run(cost_us(path)))
            path.unlink()
            with stuck(path):
                taken["stuck"].append(asyncio.run(cost_us(path)))
    print(table(("listener", "µs an event"), [(who, median(us)) for who, us in taken.items()]))
    emit("events", {"nobody_us": at_most(median(taken["nobody"]), NOBODY_US)}, {"us": taken})


if __name__ == "__main__":
    main()
