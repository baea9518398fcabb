"""Which memory serves weights best: how fast it is read, how soon it is there, who shares it.

A file of 96 MiB, as 4-bit weights of 160 million numbers are, read over and over by one thread
(memory_read.cpp, built here): mapped in four ways, or copied into memory in four. `cold` is mapped
anew after its pages were dropped from the system's cache, so that the disk is read; `warm` again
with what that left in the cache. `own` is what a second process with the same file adds.

    python -m benchmarks.bench_memory
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.process import ROOT, Foreign
from benchmarks.report import at_least, at_most, emit, foreign_note, median, table

MAPPED = ("map", "populate", "advise")
COPIED = ("memfd", "memfd-huge", "anonymous", "anonymous-huge")
SIZE_MIB = 96
HEAD = ("", "cold ms", "warm ms", "GB/s best", "GB/s median", "huge MiB", "own MiB")


@dataclass(frozen=True, slots=True)
class Read:
    """What memory_read prints."""

    ready_ms: float
    first_ms: float
    best: float
    middle: float
    huge_mib: float
    own_mib: float

    @property
    def whole_ms(self) -> float:
        """Until all of it was read once."""
        return self.ready_ms + self.first_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="whose file system is asked (default: /tmp)")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    foreign = Foreign()
    found: dict[str, list[tuple[float, Read, float]]] = {mode: [] for mode in MAPPED + COPIED}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        program, weights = build(Path(folder)), Path(folder) / "weights"
        weights.write_bytes(os.urandom(SIZE_MIB << 20))
        os.sync()
        for _ in range(args.rounds):
            for mode in MAPPED + COPIED:
                found[mode].append(one(program, mode, weights, args.seconds))
    rows = {mode: medians(reads) for mode, reads in found.items()}
    print(f"{SIZE_MIB} MiB of weights, one thread; medians of {args.rounds} rounds\n")
    print(table(HEAD, [[mode, *row.values()] for mode, row in rows.items()]))
    print(foreign_note(foreign.share()))
    small = rows["anonymous"]["best"]  # pages of 4 KiB, wherever huge ones aren't always given
    emit(
        "memory",
        {
            "advised mapping over 4 KiB pages, GB/s": at_least(rows["advise"]["best"] / small, 1.2),
            "advised mapping, a second process, MiB": at_most(rows["advise"]["own"], 4),
        },
        rows,
    )


def build(folder: Path) -> Path:
    program = folder / "memory_read"
    source = ROOT / "benchmarks" / "memory_read.cpp"
    subprocess.run(
        ["g++", "-std=c++20", "-O3", "-mavx2", str(source), "-o", str(program)], check=True
    )
    return program


def one(program: Path, mode: str, weights: Path, seconds: float) -> tuple[float, Read, float]:
    """Milliseconds of a cold read, a warm reading, and what a second process then holds alone."""
    drop_from_cache(weights)
    cold = run(program, mode, weights, 0).whole_ms
    warm = run(program, mode, weights, seconds)
    first = subprocess.Popen(command(program, mode, weights, 30), stdout=subprocess.DEVNULL)
    try:
        time.sleep(1.0)  # until it has all of it
        second = run(program, mode, weights, 0)
    finally:
        first.kill()
        first.wait()
    return cold, warm, second.own_mib


def command(program: Path, mode: str, weights: Path, seconds: float) -> list[str]:
    return [str(program), mode, str(weights), str(seconds)]


def run(program: Path, mode: str, weights: Path, seconds: float) -> Read:
    words = command(program, mode, weights, seconds)
    told = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return Read(*map(float, told.split()))


def drop_from_cache(weights: Path) -> None:
    """What no process maps is read from the disk the next time."""
    fd = os.open(weights, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def medians(reads: list[tuple[float, Read, float]]) -> dict[str, float]:
    return {
        "cold": median([cold for cold, _, _ in reads]),
        "warm": median([warm.whole_ms for _, warm, _ in reads]),
        "best": median([warm.best for _, warm, _ in reads]),
        "middle": median([warm.middle for _, warm, _ in reads]),
        "huge": median([warm.huge_mib for _, warm, _ in reads]),
        "own": median([own for _, _, own in reads]),
    }


if __name__ == "__main__":
    main()
