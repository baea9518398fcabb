"""Whether one tenant's time to the first token shows what another has cached.

Two tenants, at the socket, through the whole stack with the embedded engine. In each pair B asks
twice: once just after A has sent the very prefix (`candidate`), once just after A has sent another
prompt as long (`control`). All prompts are random and new, the order in a pair is drawn, the cells
take turns, with and without a background of a third tenant.

How to read it: `diff` is candidate - control in ms, and `reach` how far its 90 % interval goes from
0, for the median of the differences and for the arms' own 10th percentiles. An isolated cache must
(a) leave no trace that the tests find: p above 0.001 after Holm's correction; (b) keep both reaches
within delta, which is the claim itself: 1 % of the cold time, or a quarter of what one page saves
if that is less; (c) leave an attacker who averages 10 probes at an AUC of about 0.5, over all
cells. The arms must differ, AUC above 0.95, where A and B are one tenant, and on hosts made to
leak: with the salt dropped, and with the domain left out of the pages' keys (the check of the tags,
which catches that one, being off). If they don't, the rest shows nothing.

250 pairs rule out a gross leak, in 20 minutes; (b) and (c) need `--release`. Only a quiet machine
is fair. Every sample is in the file that is named at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import isolation_report, leaky_engine
from benchmarks.bulkhead import MODEL_ID, SCRATCH, Served, bulkhead, model_folder
from benchmarks.isolation import (
    Client,
    Prompts,
    TrialFailed,
    background,
    pair,
    rank_of_sent,
    reuse,
)
from benchmarks.isolation_report import APART, ONE_TENANT, Cell, Samples
from benchmarks.process import Foreign, end_on_sigterm

PAIRS, RELEASE_PAIRS, CONTROL_PAIRS = 250, 4000, 60
BLOCK = 5  # pairs of one cell before the next has its turn
CANDIDATES, ORDER_PAGES, ORDER_TRIALS, RELEASE_ORDER_TRIALS = 16, 2, 80, 800
REUSE_PAGES, REUSE_TRIALS = 64, 12
MINUTES = 23  # after it no further block begins
KNOWN_S = 1.5  # until a new key works everywhere
CONFIG = """
[[models]]
id = "{id}"
engine = "embedded"
path = "{folder}"
min_hosts = 1
options = {{ integrity = "{integrity}" }}
price = {{ input = "0.10", output = "0.30" }}
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is done."""

    pairs: int
    pages: Sequence[int]
    loads: Sequence[float]
    order_trials: int
    reuse_trials: int
    seed: str
    ends: float  # monotonic: the time after which nothing new begins

    @property
    def control_pairs(self) -> int:
        return min(self.pairs, CONTROL_PAIRS)


@dataclass(slots=True)
class Callers:
    """Who asks."""

    a: Client
    a_again: Client  # another key of the same tenant
    b: Client
    crowd: Client  # of a third tenant
    candidates: list[Client] = field(default_factory=list)  # of B


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pairs", type=int, help=f"for each cell; {PAIRS} if left out")
    parser.add_argument("--pages", type=int, nargs="+", help="of the prefix; 8 if left out")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.0, 0.5])
    parser.add_argument("--seed", default="1")
    parser.add_argument(
        "--release", action="store_true", help="4,000 pairs at 1, 8 and 64 pages: about a day"
    )
    options = parser.parse_args()
    end_on_sigterm()
    foreign, trials = Foreign(), Trials(_plan(options))
    try:
        asyncio.run(trials.run())
    finally:
        file = _keep(trials.samples, options.seed)
    isolation_report.report(trials.samples, options.seed, file, foreign.share())


def _plan(options: argparse.Namespace) -> Plan:
    release = options.release
    pairs = options.pairs or (RELEASE_PAIRS if release else PAIRS)
    return Plan(
        pairs=pairs,
        pages=options.pages or ((1, 8, 64) if release else (8,)),
        loads=options.loads,
        order_trials=min(pairs, RELEASE_ORDER_TRIALS if release else ORDER_TRIALS),
        reuse_trials=min(pairs, REUSE_TRIALS),
        seed=options.seed,
        ends=float("inf") if release else time.monotonic() + MINUTES * 60,
    )


class Trials:
    """All of them, one stack after another: those that leak, then Bulkhead as it is."""

    def __init__(self, plan: Plan) -> None:
        self.samples = Samples()
        self._plan = plan
        self._prompts = Prompts(plan.seed)
        self._chance = random.Random(plan.seed)

    async def run(self) -> None:
        for fault in leaky_engine.FACTORIES:
            with _callers(fault) as callers:
                await self._warm_up(callers)
                for _ in range(self._plan.control_pairs):
                    await self._pair(callers, Cell(fault, self._plan.pages[0], 0.0))
        with _callers() as callers:
            await self._warm_up(callers)
            await self._reuse(callers)
            await self._order(callers)
            await self._pairs(callers)

    async def _warm_up(self, callers: Callers) -> None:
        for client in (callers.a, callers.a_again, callers.b, callers.crowd, *callers.candidates):
            await client.first_token_ms(self._prompts.of_pages(2))

    async def _reuse(self, callers: Callers) -> None:
        for _ in range(self._plan.reuse_trials):
            with self._counting_errors("reuse"):
                times = await reuse(callers.b, REUSE_PAGES, self._prompts)
                self.samples.reuse.append(times)

    async def _order(self, callers: Callers) -> None:
        together = callers.candidates
        for _ in range(self._plan.order_trials):
            with self._counting_errors("order"):
                rank = await rank_of_sent(
                    callers.a, together, ORDER_PAGES, self._prompts, self._chance
                )
                self.samples.ranks.append(rank)

    async def _pairs(self, callers: Callers) -> None:
        """The cells in turns, the loads in an order that is drawn each time."""
        plan = self._plan
        for done in range(0, plan.pairs, BLOCK):
            for load in self._chance.sample(list(plan.loads), len(plan.loads)):
                if time.monotonic() > plan.ends:
                    print(f"out of time after {done} of {plan.pairs} pairs")
                    return
                with self._counting_errors(f"background of {load:.0%}"):
                    async with background(callers.crowd, load, self._prompts):
                        await self._block(callers, load, done)

    async def _block(self, callers: Callers, load: float, done: int) -> None:
        """The next pairs of each cell under one load."""
        for pages in self._plan.pages:
            for number in range(done, min(done + BLOCK, self._plan.pairs)):
                await self._pair(callers, Cell(APART, pages, load))
                if number < self._plan.control_pairs:
                    await self._pair(callers, Cell(ONE_TENANT, pages, load))

    async def _pair(self, callers: Callers, cell: Cell) -> None:
        prober = callers.a_again if cell.who == ONE_TENANT else callers.b
        with self._counting_errors(str(cell)):
            times = await pair(callers.a, prober, cell.pages, self._prompts, self._chance)
            self.samples.pairs[cell].append(times)

    @contextmanager
    def _counting_errors(self, what: str) -> Iterator[None]:
        """A trial that fails is told at the end; the others go on."""
        try:
            yield
        except TrialFailed as fault:
            self.samples.errors.append(f"{what}: {fault}")


@contextmanager
def _callers(fault: str = "") -> Iterator[Callers]:
    """A Bulkhead of its own, and clients of its tenants. `fault`: its hosts have it."""
    integrity = "off" if fault == leaky_engine.DOMAIN_NOT_IN_KEY else "enforce"
    config = CONFIG.format(id=MODEL_ID, folder=model_folder(), integrity=integrity)
    program = ("benchmarks.leaky", fault) if fault else ("gateway",)
    with bulkhead(config, program=program) as served, ExitStack() as stack:

        def client(key: str) -> Client:
            return stack.enter_context(closing(Client(served.target("/completions", key))))

        (a, a_again), (b,), (crowd,) = _keys(served)
        candidates = [client(b) for _ in range(CANDIDATES)]
        yield Callers(client(a), client(a_again), client(b), client(crowd), candidates)


def _keys(served: Served) -> tuple[list[str], list[str], list[str]]:
    keys = served.new_tenant("a", 2), served.new_tenant("b"), served.new_tenant("crowd")
    time.sleep(KNOWN_S)
    return keys


def _keep(samples: Samples, seed: str) -> Path:
    """Every sample, unrounded, in a file."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    file = SCRATCH / "isolation-samples.json"
    cells = {str(cell): pairs for cell, pairs in samples.pairs.items()}
    about = {"seed": seed, "candidate_and_control_ms": cells}
    file.write_text(json.dumps(about | {"warm_and_cold_ms": samples.reuse, "ranks": samples.ranks}))
    return file


if __name__ == "__main__":
    main()
