"""From nothing to the first token: a cold model of Bulkhead's, beside llama.cpp's server's start.

Bulkhead runs as `bulkhead dev` does, with a model that has no host. A round sends it one streamed
request, which starts the host, loads the weights and answers; a second one, to the warm host; then
it waits until the idle host has stopped. llama.cpp's server is a process that is started in each
round, asked the same, and ended. They take turns, and the files are in the page cache.
Memory is what a tree of processes holds, a page that they share counted once: Bulkhead's before the
request, warm, and once its host is gone.

`a host alone` is one engine host without gateway and node, from the start of its process to its
first token, as llama.cpp's server is timed: INT4 weights and FP8 pages against its Q4_1.

How to read it: the ratios. `x llama.cpp` is our time to the first token over theirs, the median of
the ratios within each round. llama.cpp's server is the one that `benchmarks.peers` has built; else
a Python process with a wheel that is compiled for AVX2.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import llama_server
from benchmarks.bulkhead import MODEL_ID, Served, bulkhead, int4_folder, model_folder
from benchmarks.hosts import host
from benchmarks.load import Sample, Target, closed_loop
from benchmarks.peers import LLAMA_SERVER
from benchmarks.process import Child, Foreign, end_on_sigterm
from benchmarks.prompts import bodies, prompts
from benchmarks.report import at_most, emit, foreign_note, median, percentile, table

PROMPT_TOKENS, MAX_TOKENS = 16, 8
THREADS = 2
ROUNDS, SHORT_ROUNDS = 20, 2
COLD_START_MS = 2000.0  # the bar for the median from request to first token
RETURNED_MB = 16.0  # the bar for what stays of a host's memory once it has stopped
STOP_S = 60.0  # for an idle host to be gone
MB = 1_000_000
CONFIG = """
[relay]
keep_alive_s = 300  # a comment would look like a first token

[[models]]
id = "{id}"
engine = "embedded"
path = "{folder}"
idle_timeout_s = 1
price = {{ input = "0.10", output = "0.30" }}
"""


@dataclass(slots=True)
class Results:
    """Milliseconds and bytes, one of each a round."""

    cold_ms: list[float] = field(default_factory=list)
    warm_ms: list[float] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    warm: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    their_ready_ms: list[float] = field(default_factory=list)
    their_ms: list[float] = field(default_factory=list)
    their_warm: list[int] = field(default_factory=list)
    host_ms: list[float] = field(default_factory=list)
    host_warm: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def ratio(self) -> float:
        """The host's time over theirs, the median of the rounds' own ratios."""
        pairs = zip(self.host_ms, self.their_ms, strict=True)
        return median([ours / theirs for ours, theirs in pairs])

    def memory_ratio(self) -> float:
        """The same of what both hold when warm."""
        pairs = zip(self.host_warm, self.their_warm, strict=True)
        return median([ours / theirs for ours, theirs in pairs])

    def stays(self) -> float:
        """Bytes that a start and a stop leave behind, the median."""
        pairs = zip(self.before, self.after, strict=True)
        return median([float(after - before) for before, after in pairs])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--short", action="store_true", help="few rounds: a trial of the bench")
    parser.add_argument("--int4", type=Path, help="an artefact of `bulkhead build`")
    options = parser.parse_args()
    end_on_sigterm()
    folder, foreign, results = model_folder(), Foreign(), Results()
    int4 = options.int4 or int4_folder(folder)
    requests = bodies(prompts(folder, PROMPT_TOKENS, "cold"), MODEL_ID, MAX_TOKENS)
    with bulkhead(CONFIG.format(id=MODEL_ID, folder=folder)) as served:
        _ours(served, requests, Results())  # what the gateway loads once is loaded then
        for _ in range(SHORT_ROUNDS if options.short else options.rounds):
            _ours(served, requests, results)
            _host_alone(int4, folder, results)
            _theirs(folder / "model.gguf", requests, results)
    _report(results, foreign.share())


def _ours(served: Served, requests: Iterator[bytes], results: Results) -> None:
    """One cold start, one warm request, one idle stop."""
    target, processes = served.target("/completions"), served.child.num_processes()
    results.before.append(served.child.memory_bytes())
    cold = _ask(target, requests, results)
    results.cold_ms.append(_first_token_ms(cold, cold.began))
    warm = _ask(target, requests, results)
    results.warm_ms.append(_first_token_ms(warm, warm.began))
    results.warm.append(served.child.memory_bytes())
    _wait_for_stop(served.child, processes)
    results.after.append(served.child.memory_bytes())


def _wait_for_stop(child: Child, processes: int) -> None:
    deadline = time.monotonic() + STOP_S
    while child.num_processes() > processes:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the idle host has not stopped within {STOP_S:g} s")
        time.sleep(0.1)


def _host_alone(int4: Path, folder: Path, results: Results) -> None:
    """One start of a host, its first answer, and its end."""
    ids = prompts(folder, PROMPT_TOKENS, f"host {len(results.host_ms)}")
    requests = bodies(ids, MODEL_ID, MAX_TOKENS, for_host=True)
    began = time.perf_counter()
    with host(int4, {"threads": THREADS}) as served:
        sample = _ask(served.target, requests, results)
        results.host_ms.append(_first_token_ms(sample, began))
        results.host_warm.append(served.child.memory_bytes())


def _theirs(model: Path, requests: Iterator[bytes], results: Results) -> None:
    """One start of llama.cpp's server, its first answer, and its end."""
    binary = LLAMA_SERVER if LLAMA_SERVER.exists() else None
    began = time.perf_counter()
    with llama_server.started(model, binary) as (url, server):
        results.their_ready_ms.append((time.perf_counter() - began) * 1000)
        sample = _ask(Target(url, "/completions"), requests, results)
        results.their_ms.append(_first_token_ms(sample, began))
        results.their_warm.append(server.memory_bytes())


def _ask(target: Target, requests: Iterator[bytes], results: Results) -> Sample:
    run = asyncio.run(
        closed_loop(target, requests, 1, requests=1, patience_s=120, keep_alive=False)
    )
    results.errors += run.errors
    return run.samples[0]


def _first_token_ms(sample: Sample, began: float) -> float:
    return (sample.arrivals[0] - began) * 1000 if sample.arrivals else float("nan")


def _report(results: Results, foreign: float) -> None:
    times = [
        ("bulkhead, cold: first token", results.cold_ms),
        ("bulkhead, warm: first token", results.warm_ms),
        ("llama.cpp: ready", results.their_ready_ms),
        ("llama.cpp: first token", results.their_ms),
        ("a host alone: first token", results.host_ms),
    ]
    rows = [(n, median(v), percentile(v, 99), min(v), len(v)) for n, v in times]
    print(table(("milliseconds", "p50", "p99", "min", "rounds"), rows))
    sizes = [
        ("bulkhead, before", results.before),
        ("bulkhead, its host warm", results.warm),
        ("bulkhead, after the idle stop", results.after),
        ("a host alone, warm", results.host_warm),
        ("llama.cpp, warm", results.their_warm),
    ]
    rows_mb = [(name, median(v) / MB, max(v) / MB) for name, v in sizes]
    print("\n" + table(("memory, MB", "median", "max"), rows_mb))
    print(f"\na host alone x llama.cpp: first token {results.ratio():.2f}, ", end="")
    print(f"memory {results.memory_ratio():.2f}")
    print(foreign_note(foreign))
    for error in results.errors:
        print(f"error: {error}")
    targets = {
        "cold_start_p50_ms": at_most(median(results.cold_ms), COLD_START_MS),
        "host_alone_x_llama_cpp_first_token": at_most(results.ratio(), 1.0),
        "host_alone_x_llama_cpp_memory": at_most(results.memory_ratio(), 1.0),
        "stays_after_idle_stop_mb": at_most(results.stays() / MB, RETURNED_MB),
        "errors": at_most(len(results.errors), 0),
    }
    raw = {
        "foreign_cpu": foreign,
        "ms": dict(times),
        "mb": {name: [value / MB for value in values] for name, values in sizes},
        "errors": results.errors,
    }
    emit("cold_start", targets, raw)


if __name__ == "__main__":
    main()
