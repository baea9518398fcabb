"""What the guard inside TensorRT-LLM costs a step, in ms: its ledger alone, and all of it on a CPU.

Requests decode, each with so many blocks of 32 tokens; each pair is one step, told to the ledger
and to its plain Python twin. `whole lists` is told every row's list anew, as a connector that can
have it would. `new` is a request that begins: with a prompt of so many blocks, none of them cached.
`all` is a step of the ledger with all that is around it on rank 0: see `guard_inside`.

    python -m benchmarks.bench_guard
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import NamedTuple

import numpy as np

from benchmarks.guard_inside import Inside
from benchmarks.guard_twin import PlainShadow
from benchmarks.paired import Pairs, interval, ratio_of_medians
from benchmarks.process import Foreign
from benchmarks.report import at_most, emit, foreign_note, median, percentile, table
from engines.trtllm.shadow import Scheduled, Shadow

SIZE = 32  # tokens a block
SIZES = ((64, 256), (1, 256), (8, 256), (16, 1024), (256, 64), (512, 16))
BAR = (64, 256)
BAR_MS = 0.3


class Row(NamedTuple):
    num_requests: int
    num_blocks: int
    step_ms: list[float]
    whole_ms: list[float]
    all_ms: list[float]
    new_ms: list[float]
    pairs: Pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="of each size")
    args = parser.parse_args()
    foreign = Foreign()
    rows = [measured(*size, args.steps) for size in SIZES]
    head = [
        "requests x blocks",
        "ms a step",
        "p99",
        "twin",
        "of the twin",
        "whole lists",
        "all",
        "new",
    ]
    print(table(head, [_line(row) for row in rows]))
    share = foreign.share()
    print(foreign_note(share))
    (bar,) = [row for row in rows if (row.num_requests, row.num_blocks) == BAR]
    chance = np.random.default_rng(0)
    raw = {
        f"{row.num_requests}x{row.num_blocks}": {
            "step_ms": row.step_ms,
            "twin_ms": row.pairs.control.tolist(),
            "of_the_twin": asdict(interval(row.pairs, ratio_of_medians, chance)),
            "whole_ms": row.whole_ms,
            "all_ms": row.all_ms,
            "new_ms": row.new_ms,
        }
        for row in rows
    }
    targets = {
        "ms a step, 64 x 256": at_most(median(bar.step_ms), BAR_MS),
        "ms a step, 64 x 256, all": at_most(median(bar.all_ms), BAR_MS),
    }
    emit("guard", targets, {"foreign": share, "sizes": raw})


def measured(num_requests: int, num_blocks: int, steps: int) -> Row:
    """Fails if anything is told, or if a block is left out."""
    shadow = Shadow(SIZE, requires_salt=True)
    whole = Shadow(SIZE, requires_salt=True)
    inside = Inside(SIZE)
    load = Load(num_requests, num_blocks, steps)
    twin = PlainShadow(load.pool)
    new_ms = []
    for request, blocks, prompt in load.prompts():
        salt = f"tenant-{request % 8}"
        new_ms.append(ms(lambda: shadow.allocated(request, salt, blocks, 0, prompt)))  # noqa: B023
        whole.allocated(request, salt, blocks, 0, prompt)
        inside.allocated(request, salt, blocks, prompt)
        twin.allocated(request, blocks)
    items = load.first_step()
    shadow.step(items)
    whole.step(items)
    inside.step(inside.output(items))
    pairs, whole_ms, all_ms, due = [], [], [], sum(map(len, load.lists))
    for number, items in enumerate(load.steps(steps)):
        listed = [item._replace(table=load.lists[item.request]) for item in items]
        arms: list[Callable[[], object]] = [lambda: shadow.step(items), lambda: twin.step(items)]  # noqa: B023
        taken = [0.0, 0.0]
        for arm in (0, 1) if number % 2 else (1, 0):
            taken[arm] = ms(arms[arm])
        pairs.append((taken[0], taken[1]))
        whole_ms.append(ms(lambda: whole.step(listed)))  # noqa: B023
        output = inside.output(items)
        all_ms.append(ms(lambda: inside.step(output)))  # noqa: B023
        due += sum(map(len, load.lists))
    assert shadow.counters.violations == whole.counters.violations == 0
    assert shadow.counters.checked == whole.counters.checked == due
    assert inside.is_sound
    step_ms = [one for one, _ in pairs]
    return Row(num_requests, num_blocks, step_ms, whole_ms, all_ms, new_ms, Pairs.of(pairs))


class Load:
    """Requests that decode; each gains a block every 32 steps, and not all at once."""

    def __init__(self, num_requests: int, num_blocks: int, steps: int) -> None:
        chance = np.random.default_rng(0)
        self.pool = num_requests * (num_blocks + steps // SIZE + 1)
        self._free = iter(chance.permutation(self.pool).tolist())
        self.lists = [[next(self._free) for _ in range(num_blocks)] for _ in range(num_requests)]
        self._ends = [(num_blocks - 1) * SIZE + 1 + i % SIZE for i in range(num_requests)]
        self._chance = chance

    def prompts(self) -> Iterator[tuple[int, list[int], list[int]]]:
        for request, end in enumerate(self._ends):
            yield request, list(self.lists[request]), self._chance.integers(0, 99, end).tolist()

    def first_step(self) -> list[Scheduled]:
        return [
            Scheduled(request, list(blocks), 0, end, [0])
            for request, (blocks, end) in enumerate(zip(self.lists, self._ends, strict=True))
        ]

    def steps(self, number: int) -> Iterator[list[Scheduled]]:
        for _ in range(number):
            yield [self._decodes(request) for request in range(len(self.lists))]

    def _decodes(self, request: int) -> Scheduled:
        position, gained = self._ends[request], []
        if position == len(self.lists[request]) * SIZE:
            gained = [next(self._free)]
            self.lists[request] += gained
        self._ends[request] += 1
        return Scheduled(request, gained, position, 1, [position % 99])


def ms(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def _line(row: Row) -> list[object]:
    twin = median(row.pairs.control.tolist())
    return [
        f"{row.num_requests} x {row.num_blocks}",
        median(row.step_ms),
        percentile(row.step_ms, 99),
        twin,
        f"1/{twin / median(row.step_ms):.1f}",
        median(row.whole_ms),
        median(row.all_ms),
        median(row.new_ms),
    ]


if __name__ == "__main__":
    main()
