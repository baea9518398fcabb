"""What speculation gains where texts repeat themselves, and what it costs where they don't.

Two engines in one process over the same weights, one with `speculation`, decode the same greedy
requests: alone, and eight at once. They take turns, which one is first is drawn, and both must give
the same tokens. Timed is what follows the first tokens of all: prompts aren't what it changes.

    python -m benchmarks.bench_speculation

How to read it: the ratios. One is the median of those within each pair of runs. `right` is the
share of drafts that the model chose too. Prose of a small model soon repeats itself: what it costs
is told by itself, with guesses that are all wrong (`misled`). The gain is told here alone:
speculation is on in no other benchmark of ours.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from tokenizers import Tokenizer

from benchmarks.bulkhead import int4_folder, model_folder
from benchmarks.process import Foreign
from benchmarks.report import at_least, emit, foreign_note, median, table
from benchmarks.speculation_texts import text
from engines.api import EngineSpec, Request, Sampling
from engines.embedded.engine import EmbeddedEngine, create
from engines.embedded.lookup import Lookup

CLIENTS = (1, 8)
DRAFTS, MAX_TOKENS = 8, 64
MISLED = "misled"  # prose, and every guess is wrong: the most that speculation can cost
KINDS = {"quoting": 1.3, "code edit": 1.3, "prose": 0.97, MISLED: 0.97}  # bars at one request


class Wrong(Lookup):
    """Guesses what no text of ours holds, and always finds some."""

    def drafts(self, tokens: Sequence[int], most: int) -> tuple[int, ...]:
        return (0,) * most


class NotAlike(Exception):
    """The engines gave different tokens: then one of them is wrong."""


@dataclass(slots=True)
class Cell:
    """Pairs of runs of one kind of text, with so many requests at once."""

    kind: str
    clients: int
    runs: int = 0
    rates: list[float] = field(default_factory=list)  # tokens a second without speculation
    ratios: list[float] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    steps_plain: int = 0

    def run(self, engines: tuple[EmbeddedEngine, EmbeddedEngine], tokenizer: Tokenizer) -> None:
        """The same requests for both, none of which either has seen. Raises NotAlike."""
        numbers = range(self.runs * self.clients, (self.runs + 1) * self.clients)
        prompts = [tokenizer.encode(text(self.kind, number)).ids for number in numbers]
        self.runs += 1
        plain, drafting = engines
        order = random.Random(f"{self.kind} {self.runs}").sample(engines, 2)
        misled = self.kind == MISLED
        ran = {engine: decoded(engine, prompts, misled=misled) for engine in order}
        if ran[plain].tokens != ran[drafting].tokens:
            raise NotAlike(f"{self.kind}: other tokens with speculation than without")
        self.rates.append(ran[plain].timed / ran[plain].seconds)
        self.ratios.append(ran[drafting].timed / ran[drafting].seconds / self.rates[-1])
        self.drafted += ran[drafting].drafted
        self.accepted += ran[drafting].accepted
        self.steps += ran[drafting].steps
        self.steps_plain += ran[plain].steps


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run gave. `timed` tokens took `seconds`: those after everybody's first."""

    tokens: list[list[int]]
    timed: int
    seconds: float
    drafted: int
    accepted: int
    steps: int


def main() -> None:
    options = _options()
    packaged = model_folder()
    folder = str(int4_folder(packaged) if options.int4 else packaged)
    tokenizer = Tokenizer.from_file(str(packaged / "tokenizer.json"))
    shared = {"threads": options.threads, "kv_memory_bytes": 256 << 20}
    plain = create(EngineSpec("plain", folder, shared))
    drafting = create(EngineSpec("drafting", folder, shared | {"speculation": DRAFTS}))
    for engine in (plain, drafting):
        engine.scheduler.eos_token_ids = frozenset()  # all answers are equally long
    cells = [Cell(kind, clients) for clients in CLIENTS for kind in KINDS]
    for cell in cells[: len(KINDS)]:
        Cell(cell.kind, 1, runs=options.rounds).run((plain, drafting), tokenizer)  # to warm up
    foreign = Foreign()
    for _ in range(options.rounds):
        for cell in cells:
            cell.run((plain, drafting), tokenizer)
    _report(cells, foreign.share(), "int4" if options.int4 else "bf16")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What speculation gains, and what it costs.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--int4", action="store_true", help="INT4-AWQ weights and FP8 pages")
    return parser.parse_args()


def decoded(engine: EmbeddedEngine, prompts: list[list[int]], *, misled: bool) -> Ran:
    """Answer all of these at once, and time what follows when each has its first token."""
    answers: dict[str, list[int]] = {str(number): [] for number in range(len(prompts))}
    sampling = Sampling(MAX_TOKENS, temperature=0.0)
    for id, prompt in zip(answers, prompts, strict=True):
        engine.add(Request(id, "bench", tuple(prompt), sampling))
    for seq in engine.scheduler.waiting:
        if seq.drafter is not None and misled:
            seq.drafter.lookup = Wrong()
    while not all(answers.values()):
        _step(engine, answers)
    before, untimed = engine.stats(), sum(map(len, answers.values()))
    began = time.perf_counter()
    while engine.has_work():
        _step(engine, answers)
    seconds, after = time.perf_counter() - began, engine.stats()
    return Ran(
        tokens=list(answers.values()),
        timed=sum(map(len, answers.values())) - untimed,
        seconds=seconds,
        drafted=after.drafted_tokens - before.drafted_tokens,
        accepted=after.accepted_tokens - before.accepted_tokens,
        steps=after.steps - before.steps,
    )


def _step(engine: EmbeddedEngine, answers: dict[str, list[int]]) -> None:
    for output in engine.step():
        answers[output.request_id] += output.token_ids


HEAD = ("decoding", "at once", "tokens/s without", "x with", "min-max", "right", "steps saved")


def _report(cells: list[Cell], foreign: float, weights: str) -> None:
    print(table(HEAD, [_row(cell) for cell in cells]))
    print(foreign_note(foreign))
    targets = {
        f"x_{cell.kind.replace(' ', '_')}": at_least(median(cell.ratios), KINDS[cell.kind])
        for cell in cells
        if cell.clients == 1
    }
    raw = {"weights": weights, "foreign_cpu": foreign, "cells": [asdict(cell) for cell in cells]}
    emit("speculation", targets, raw)


def _row(cell: Cell) -> tuple[object, ...]:
    return (
        cell.kind,
        cell.clients,
        median(cell.rates),
        median(cell.ratios),
        f"{min(cell.ratios):.2f}-{max(cell.ratios):.2f}",
        f"{cell.accepted / max(1, cell.drafted):.0%}",
        f"{1 - cell.steps / cell.steps_plain:.0%}",
    )


if __name__ == "__main__":
    main()
