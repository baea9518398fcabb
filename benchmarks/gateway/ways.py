"""The ways to the fake engine that bench_gateway compares, all up at the same time.

Gateways run on one core; the engine and the load client on another, where there are two.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bulkhead import SCRATCH, Served, bulkhead
from benchmarks.gateway.bodies import MODELS
from benchmarks.gateway.peers import ALL, peer
from benchmarks.gateway.programs import Engine, engine
from benchmarks.load import Target
from benchmarks.process import Child, ChildFailed, child, free_port, python

PATH = "/chat/completions"
OURS, ON_DISK, BARE, NAIVE, DIRECT = (
    "bulkhead",
    "bulkhead, on disk",
    "bare pass-through",
    "naive",
    "direct",
)
MEMORY = Path("/dev/shm")  # where a commit waits for nothing
# Counted for each request, and never reached.
LIMITS = """
[limits.per_tenant]
rpm = 1000000000
tpm = 1000000000000
concurrent = 100000
[limits.per_key]
rpm = 1000000000
tpm = 1000000000000
concurrent = 100000
"""
CONFIG = """
[[models]]
id = "{id}"
engine = "openai"
url = "{url}"
cache = "salted"
upstream_model = "{id}"
max_in_flight = 1000
price = {{ input = "0.10", cached_input = "0.02", output = "0.30" }}
"""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to the engine; `child` is the gateway's process, None where there's none."""

    name: str
    target: Target
    child: Child | None
    ready_s: float = 0.0  # from its start to its first answer
    prefix: str = ""  # what it wants before a model's name
    is_slow: bool = False  # crowds of streams are beyond it

    def cpu_s(self) -> float:
        """CPU time of the gateway so far."""
        return self.child.cpu_s() if self.child else 0.0


def cores() -> tuple[int | None, int | None]:
    """One for the gateways, one for the load; None where there's only one."""
    usable = sorted(os.sched_getaffinity(0))
    return (usable[0], usable[-1]) if len(usable) > 1 else (None, None)


@contextmanager
def ways() -> Iterator[tuple[Engine, list[Way]]]:
    """All of them, up and idle; this process moves to the load's core."""
    core, load_core = cores()
    if load_core is not None:
        os.sched_setaffinity(0, {load_core})
    SCRATCH.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        up = stack.enter_context(engine(load_core))
        found = [
            stack.enter_context(_ours(OURS, up, MEMORY if MEMORY.is_dir() else SCRATCH, core)),
            stack.enter_context(_ours(ON_DISK, up, SCRATCH, core)),
            stack.enter_context(_twin(BARE, _granian, up, core)),
            stack.enter_context(_twin(NAIVE, _uvicorn, up, core)),
        ]
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=SCRATCH)))
        found += _peers(stack, up, folder, core)
        yield up, [*found, Way(DIRECT, Target(up.url, PATH), None)]


@contextmanager
def _ours(name: str, up: Engine, folder: Path, core: int | None) -> Iterator[Way]:
    """Everything on: keys, limits, budgets, prices, the durable ledger, the request log."""
    config = LIMITS + "".join(CONFIG.format(id=model, url=up.url) for model in MODELS)
    with bulkhead(config, core=core, folder=folder, migrated=True) as served:
        _limit(served)
        yield Way(name, served.target(PATH), served.child, served.ready_s)


def _limit(served: Served) -> None:
    """A budget that is held and spent by each request, and never reached."""
    served.command("budgets", "create", "demo", "--limit", "1000000")
    time.sleep(1.5)  # a gateway looks for new ones once a second


def _peers(stack: ExitStack, up: Engine, folder: Path, core: int | None) -> Iterator[Way]:
    for one in ALL:
        if not one.python.exists():
            print(f"without {one.package}: python -m benchmarks.gateway.peers installs it")
            continue
        began = time.monotonic()
        try:
            target, running = stack.enter_context(peer(one, up.root, folder, core))
        except ChildFailed as fault:
            print(f"without {one.package}: {fault}")
        else:
            ready_s = time.monotonic() - began
            yield Way(one.name, target, running, ready_s, one.prefix, one.is_slow)


def _granian(port: int) -> list[str]:
    options = ("--interface=asgi", "--workers=1", "--no-ws", "--log-level=warning")
    return python("granian", *options, f"--port={port}", "benchmarks.passthrough:app")


def _uvicorn(port: int) -> list[str]:
    return python("uvicorn", "--log-level=warning", f"--port={port}", "benchmarks.naive:app")


@contextmanager
def _twin(
    name: str, command: Callable[[int], list[str]], up: Engine, core: int | None
) -> Iterator[Way]:
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1"
    began = time.monotonic()
    with child(
        command(port), url=f"{url}/ready", core=core, env={"BENCH_UPSTREAM": up.url}
    ) as gateway:
        yield Way(name, Target(url, PATH), gateway, time.monotonic() - began)
