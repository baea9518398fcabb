"""The four ways to the fake upstream that bench_gateway compares, all up at the same time.

Gateways run on one core; the upstream and the load client on another, where there are two.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from benchmarks import upstream
from benchmarks.bulkhead import bulkhead
from benchmarks.load import Target
from benchmarks.process import Child, child, free_port, python

PATH = "/chat/completions"
OURS, BARE, NAIVE, DIRECT = "bulkhead", "bare pass-through", "naive", "direct"
MODELS = ("plain", "paced-20")
CONFIG = """
[[models]]
id = "{id}"
engine = "openai"
cache = "salted"
url = "{url}"
upstream_model = "{id}"
price = {{ input = "0.10", cached_input = "0.02", output = "0.30" }}
"""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to the upstream; `child` is the gateway's process, None where there's none."""

    name: str
    target: Target
    child: Child | None

    def cpu_s(self) -> float:
        """CPU time of the gateway so far."""
        return self.child.cpu_s() if self.child else 0.0


def cores() -> tuple[int | None, int | None]:
    """One for the gateways, one for the load; None where there's only one."""
    usable = sorted(os.sched_getaffinity(0))
    return (usable[0], usable[-1]) if len(usable) > 1 else (None, None)


@contextmanager
def ways() -> Iterator[list[Way]]:
    """All of them, up and idle; this process moves to the load's core."""
    gateway_core, load_core = cores()
    if load_core is not None:
        os.sched_setaffinity(0, {load_core})
    with ExitStack() as stack:
        command = python("benchmarks.upstream")
        up = stack.enter_context(child(command, upstream.READY, core=load_core))
        url = up.printed(upstream.READY)
        config = "".join(CONFIG.format(id=model, url=url) for model in MODELS)
        served = stack.enter_context(bulkhead(config, core=gateway_core))
        yield [
            Way(OURS, served.target(PATH), served.child),
            stack.enter_context(_twin(BARE, _granian, url, gateway_core)),
            stack.enter_context(_twin(NAIVE, _uvicorn, url, gateway_core)),
            Way(DIRECT, Target(url, PATH), None),
        ]


def _granian(port: int) -> list[str]:
    options = ("--interface=asgi", "--workers=1", "--no-ws", "--log-level=warning")
    return python("granian", *options, f"--port={port}", "benchmarks.passthrough:app")


def _uvicorn(port: int) -> list[str]:
    return python("uvicorn", "--log-level=warning", f"--port={port}", "benchmarks.naive:app")


@contextmanager
def _twin(
    name: str, command: Callable[[int], list[str]], upstream_url: str, core: int | None
) -> Iterator[Way]:
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1"
    env = {"BENCH_UPSTREAM": upstream_url}
    with child(command(port), url=f"{url}/ready", core=core, env=env) as gateway:
        yield Way(name, Target(url, PATH), gateway)
