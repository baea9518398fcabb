"""What the tag check costs: CPU time a step, throughput, and latency over HTTP.

`cost`: three engines in one process do the same steps (`lanes`), the check switched on in one of
them and off in two, which one and in what order drawn for each step; without overlap, so that CPU
time is the step's. In percent of a step without it: the trimmed mean of paired log ratios with its
95 % half-width; `A/A` is the same of the two steps without it, `sums` the ratio of all CPU time.
What is switched is the check. Fences, tags and scrubbing go on in all three.
`check us`, `ns a page`: both checks of a step by their own clock (wall time).
`tokens/s`: two engines that overlap their steps, in windows of the same work, on over off, by the
same estimator.

c requests are inside all the time; long prompts are 512 tokens and their answers 4 to 8, short ones
32 and 96 to 160. The worst case is `long_decode`: 2 layers, 64 rows of 8K tokens.

How to read it: a cell passes if both checks take 0.3 % of a step at most by their own clock, and if
the upper bound of what pairs of steps show is under 1 %, from an interval of half a percent to each
side at most; sampling goes on to a quarter, while there is time. In the worst case a page reference
takes a nanosecond at most. The engines take turns, so a step finds its caches cold of what the
check needs, as it does behind a larger model.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import integrity_latency, long_decode
from benchmarks.bulkhead import model_folder
from benchmarks.integrity_report import Cell, report
from benchmarks.lanes import DOMAINS, Lanes, Shape, Supply
from benchmarks.overhead import FEWEST, Block, Cost, cost
from benchmarks.paired import Pairs
from benchmarks.process import Foreign, end_on_sigterm
from engines.api import EngineSpec
from engines.embedded.engine import EmbeddedEngine, create

SHAPES = (Shape("short prompt", 32, 96, 160), Shape("long prompt", 512, 4, 8))
WORST = "worst case"
ENOUGH = 0.25  # percent points to each side: narrower tells nothing more
AGAIN = 1.3  # times as many blocks before it's asked again whether they are enough
WARM_STEPS, WARM_SHARE = 8, 0.15  # before a cell's first block, and of its time at most
WINDOW_S = 1.5
MOST_LONG = long_decode.STEPS - 2 * WARM_STEPS - 2  # steps, or the rows of the worst case end


@dataclass(frozen=True, slots=True)
class Plan:
    """How long each part takes, in seconds, and with how many requests inside."""

    clients: Sequence[int]
    cell_s: float
    worst_s: float
    windows_s: float  # of each cell
    http_s: float
    seed: str
    backend: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="a short look: no verdict")
    parser.add_argument("--seed", default=str(random.randrange(10**6)))
    parser.add_argument("--backend", default="native", choices=("native", "torch"))
    options = parser.parse_args()
    end_on_sigterm()
    foreign, plan, folder = Foreign(), _plan(options), model_folder()
    print(f"seed {plan.seed}", flush=True)
    bench = Bench(plan)
    bench.packaged(folder)
    bench.worst(long_decode.two_layers(folder))
    latencies = integrity_latency.measured(folder, plan.backend, plan.seed, plan.http_s)
    report(bench.cells, latencies, plan.seed, plan.backend, foreign.share())


def _plan(options: argparse.Namespace) -> Plan:
    if options.quick:
        return Plan((1, 8), 12, 20, 8, 15, options.seed, options.backend)
    return Plan((1, 8, 16, 32, 64), 80, 120, 20, 140, options.seed, options.backend)


class Bench:
    """All cells, in one process."""

    def __init__(self, plan: Plan) -> None:
        self.cells: list[Cell] = []
        self._plan = plan
        self._chance = random.Random(plan.seed)
        self._numbers = np.random.default_rng(list(plan.seed.encode()))

    def packaged(self, folder: Path) -> None:
        """The packaged model, each shape at each number of clients."""
        plan = self._plan
        kinds = [(shape, clients) for shape in SHAPES for clients in plan.clients]
        with closing(self._lanes(3, lambda: _engine(folder, plan.backend, overlap=False))) as lanes:
            ends = time.monotonic() + plan.cell_s * len(kinds)
            for number, (shape, clients) in enumerate(kinds):
                # What one cell leaves of its time is the others'.
                cell_s = (ends - time.monotonic()) / (len(kinds) - number)
                lanes.begin(Supply(folder, shape, f"{plan.seed} {clients}"), clients)
                self.cells.append(self._cell(lanes, f"{shape.name} c={clients}", cell_s))
        with closing(self._lanes(2, lambda: _engine(folder, plan.backend, overlap=True))) as lanes:
            for cell, (shape, clients) in zip(self.cells, kinds, strict=True):
                lanes.begin(Supply(folder, shape, f"{plan.seed} {clients} overlap"), clients)
                cell.windows = self._windows(lanes, plan.windows_s)

    def worst(self, short: Path) -> None:
        """Two layers, 64 rows of 8K tokens."""
        plan = self._plan
        requests = long_decode.requests(plan.seed, DOMAINS)

        def engine(*, overlap: bool) -> EmbeddedEngine:
            made = long_decode.engine(short, plan.backend, overlap=overlap)
            long_decode.fill(made, requests)
            return made

        with closing(self._lanes(3, lambda: engine(overlap=False))) as lanes:
            lanes.begin(requests, len(requests))
            cell = self._cell(lanes, WORST, plan.worst_s, MOST_LONG)
        self.cells.append(cell)
        with closing(self._lanes(2, lambda: engine(overlap=True))) as lanes:
            lanes.begin(requests, len(requests))
            cell.windows = self._windows(lanes, plan.windows_s * 2, MOST_LONG)

    def _lanes(self, number: int, make: Callable[[], EmbeddedEngine]) -> Lanes:
        return Lanes([make() for _ in range(number)], self._chance)

    def _cell(self, lanes: Lanes, name: str, seconds: float, most: int = 10**9) -> Cell:
        """Blocks until their interval is narrow, or the time or the work is up."""
        ends = time.monotonic() + seconds
        for _ in _until(time.monotonic() + seconds * WARM_SHARE, WARM_STEPS):
            lanes.block()
        before = lanes.checked()
        blocks = self._blocks(lanes, ends, most)
        check_s, pages = (now - then for now, then in zip(lanes.checked(), before, strict=True))
        found = self._cost(blocks)
        about = f"{found.cost.estimate:.2f} % +-{found.half_width:.2f}"
        print(f"{name}: {len(blocks)} blocks, {about}", flush=True)
        return Cell(
            name=name,
            cost=found,
            step_ms=float(np.median([block.off for block in blocks])) * 1000,
            pages=pages / len(blocks) / 2,
            check_us=check_s / len(blocks) * 1e6,
            ns_a_page=check_s / pages * 1e9,
        )

    def _blocks(self, lanes: Lanes, ends: float, most: int) -> list[Block]:
        blocks: list[Block] = []
        ask = FEWEST
        for number in _until(ends, most):
            blocks.append(lanes.block())
            if number + 1 == ask:
                if self._cost(blocks).is_known_within(ENOUGH):
                    break
                ask = int(ask * AGAIN) + 1
        return blocks

    def _windows(self, lanes: Lanes, seconds: float, most: int = 10**9) -> Pairs:
        """Wall time of pairs of windows, each some steps of the same work."""
        ends = time.monotonic() + seconds
        warm_ends = time.monotonic() + seconds * WARM_SHARE
        warm = [min(lanes.pair(1)) for _ in _until(warm_ends, WARM_STEPS)]
        steps = max(2, round(WINDOW_S / float(np.median(warm))))
        steps = min(steps, most // FEWEST)
        return Pairs.of([lanes.pair(steps) for _ in _until(ends, most // (steps + 1))])

    def _cost(self, blocks: list[Block]) -> Cost:
        return cost(blocks, self._numbers)


def _until(ends: float, most: int) -> Iterator[int]:
    """Numbers from 0 on, so many at most, until it is that late; 0 in any case."""
    for number in range(most):
        if number and time.monotonic() > ends:
            return
        yield number


def _engine(folder: Path, backend: str, *, overlap: bool) -> EmbeddedEngine:
    return create(EngineSpec("packaged", str(folder), {"backend": backend, "overlap": overlap}))


if __name__ == "__main__":
    main()
