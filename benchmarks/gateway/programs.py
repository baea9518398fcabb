"""The two programs in C, built once by the system's compiler: the fake engine and the load client.

In Python, they would take more of the machine than what they are to measure.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.bulkhead import SCRATCH
from benchmarks.load import Target
from benchmarks.process import child

READY = "READY "
FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra")


def program(name: str) -> Path:
    """The program, built if it isn't there or its source is newer."""
    sources = Path(__file__).parent
    source, built = sources / f"{name}.c", SCRATCH / f"gateway-{name}"
    newest = max(path.stat().st_mtime for path in (source, sources / "clock.h"))
    if not built.exists() or built.stat().st_mtime < newest:
        SCRATCH.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cc", *FLAGS, str(source), "-o", str(built)], check=True)
    return built


@dataclass(frozen=True, slots=True)
class Engine:
    """A fake engine that runs. `url` ends in /v1."""

    url: str

    @property
    def root(self) -> str:
        """Without /v1."""
        return self.url.removesuffix("/v1")

    def stats(self) -> dict[str, int]:
        """How many requests came, are open, and were left by their client."""
        with urllib.request.urlopen(f"{self.root}/stats", timeout=5) as answer:
            found: dict[str, int] = json.load(answer)
        return found


@contextmanager
def engine(core: int | None) -> Iterator[Engine]:
    """A fake engine, until the block is left."""
    with child([str(program("engine"))], READY, core=core) as running:
        yield Engine(running.printed(READY))


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent: so many clients until so many requests or seconds are over, then waited for.

    `chunks`: events of a stream before its closing ones.
    """

    clients: int
    requests: int = 0
    seconds: float = 0.0
    stagger_s: float = 0.0
    chunks: int = 0


def run(target: Target, body: bytes, load: Load) -> dict[str, Any]:
    """Load a target; see load.c for what comes back."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(target.request(body))
        file.flush()
        port = urlsplit(target.url).port
        numbers = (load.clients, load.requests, load.seconds, int(load.stagger_s * 1000))
        words = [str(program("load")), str(port), file.name, *map(str, numbers), str(load.chunks)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found
