"""The native thread pool beside busy neighbours: what is left of its speed, and of its twins'.

The load is a step's: 180 pieces of 16 small items, one after another (pool_step.cpp, built here).
The twins deal the items out beforehand and meet at a barrier: one that spins, and std::barrier.
`idle` is a step every 30 ms, as a slow stream has them: what one takes beside one of a full load.

    python -m benchmarks.bench_pool
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.process import ROOT, Foreign
from benchmarks.report import at_least, at_most, emit, foreign_note, median, table

KINDS = ("pool", "spin", "barrier")
NEIGHBOURS = (0, 1, 2)
GAP_MS = 30
BUSY = "while True: pass"
SOURCES = (ROOT / "benchmarks" / "pool_step.cpp", ROOT / "engines" / "native" / "pool.cpp")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    foreign = Foreign()
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))
        rounds = [one_round(program, args.threads, args.seconds) for _ in range(args.rounds)]
    beside = {
        f"{kind} beside {num}": median([row[kind, 0] / row[kind, num] for row in rounds])
        for kind in KINDS
        for num in NEIGHBOURS[1:]
    }
    idle = {
        kind: median([row[kind, "idle"] / row[kind, "busy"] for row in rounds]) for kind in KINDS
    }
    head = ["", "ms a step", "beside 1", "beside 2", "after a gap"]
    rows = [
        [
            kind,
            f"{median([row[kind, 0] for row in rounds]) / 1000:.1f}",
            *(f"{beside[f'{kind} beside {num}']:.2f}x" for num in NEIGHBOURS[1:]),
            f"{idle[kind]:.1f}x the time",
        ]
        for kind in KINDS
    ]
    print(f"Speed of a step, as a share of its own without neighbours, {args.threads} threads\n")
    print(table(head, rows))
    print(foreign_note(foreign.share()))
    targets = {
        "pool, one neighbour": at_least(beside["pool beside 1"], 0.4),
        "pool, two neighbours": at_least(beside["pool beside 2"], 0.3),
        "pool, after a gap": at_most(idle["pool"], 1.5),
    }
    emit("pool", targets, {"beside": beside, "idle": idle})


def build(folder: Path) -> Path:
    program = folder / "pool_step"
    flags = ["-std=c++20", "-O3", "-DBULKHEAD_X86", f"-I{ROOT}/engines/native", "-pthread"]
    subprocess.run(["g++", *flags, *map(str, SOURCES), "-o", str(program)], check=True)
    return program


def one_round(program: Path, threads: int, seconds: float) -> dict[tuple[str, int | str], float]:
    """Microseconds a step takes: the mean by kind and number of neighbours, and two medians.

    `busy` is without neighbours, `idle` with a gap before each step: there one late timer of the
    system's isn't the pool's.
    """
    found: dict[tuple[str, int | str], float] = {}
    for num in NEIGHBOURS:
        with neighbours(num):
            for kind in KINDS:
                found[kind, num], middle = step_us(program, kind, threads, seconds, 0)
                if num == 0:
                    found[kind, "busy"] = middle
    for kind in KINDS:
        _, found[kind, "idle"] = step_us(program, kind, threads, seconds, GAP_MS)
    return found


def step_us(
    program: Path, kind: str, threads: int, seconds: float, gap_ms: int
) -> tuple[float, float]:
    """Mean and median."""
    words = [str(program), kind, str(threads), str(seconds), str(gap_ms)]
    told = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
    return float(told[1]), float(told[2])


@contextmanager
def neighbours(num: int) -> Iterator[None]:
    """So many processes that compute all the time, on whatever core the system gives them."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(num)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
