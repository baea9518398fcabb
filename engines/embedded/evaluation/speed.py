"""Tokens a second of several engines over the same prompts, in turns.

Each round has every engine once, another one first in each: what disturbs the machine meanwhile
hits all alike. The median of the rounds is told.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import median

from engines.api import EngineError, Request, Sampling
from engines.embedded.engine import EmbeddedEngine

REQUESTS = (1, 8)  # at once
DECODED = 32  # tokens of each answer
MOST_PROMPT = 1024  # tokens of a prompt that are read: a round's time has bounds
Prompt = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens a second over all requests: of prompts, and of answers while all of them run."""

    prefill: float
    decode: float


def measure(
    engines: Mapping[str, EmbeddedEngine],
    prompts: Sequence[Prompt],
    rounds: int,
    tell: Callable[[], None],
) -> dict[str, dict[int, Rates]]:
    """By engine and requests at once. `tell` is called after each engine's turn."""
    found: dict[tuple[str, int], list[Rates]] = defaultdict(list)
    names, supply = list(engines), cycle(prompts)
    for engine in engines.values():
        answer(engine, [prompts[0]])  # what is only slow the first time
    for number in range(rounds):
        for requests in REQUESTS:
            chosen = list(islice(supply, requests))
            for name in _rotated(names, number):
                found[name, requests].append(answer(engines[name], chosen))
                tell()
    return {
        name: {requests: _median(found[name, requests]) for requests in REQUESTS} for name in names
    }


def turns(engines: int, rounds: int) -> int:
    """How often `measure` calls `tell`."""
    return engines * rounds * len(REQUESTS)


def answer(
    engine: EmbeddedEngine,
    prompts: Sequence[Prompt],
    clock: Callable[[], float] = time.perf_counter,
) -> Rates:
    """All of the prompts at once, each with an answer of DECODED tokens."""
    engine.scheduler.eos_token_ids = frozenset()  # else some would answer longer than others
    sampling = Sampling(DECODED, temperature=0.0)
    began = clock()
    for place, prompt in enumerate(prompts):
        engine.add(Request(f"answer-{place}", "evaluation", prompt, sampling))
    read = ended = began
    waiting, decoded, all_run = {f"answer-{i}" for i in range(len(prompts))}, 0, True
    while engine.has_work():
        outputs = engine.step()
        now = clock()
        for output in outputs:
            if output.error is not None:
                raise EngineError(f"a request was stopped while it was timed: {output.error}")
        if waiting:
            waiting -= {output.request_id for output in outputs if output.token_ids}
            read = ended = now
        elif all_run:
            decoded += sum(len(output.token_ids) for output in outputs)
            ended = now
        all_run = all_run and not any(output.finish for output in outputs)
    return Rates(_rate(sum(map(len, prompts)), read - began), _rate(decoded, ended - read))


def _rotated(names: Sequence[str], by: int) -> Iterator[str]:
    return islice(cycle(names), by % len(names), by % len(names) + len(names))


def _median(rates: Sequence[Rates]) -> Rates:
    return Rates(median(one.prefill for one in rates), median(one.decode for one in rates))


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if seconds > 0 else 0.0
