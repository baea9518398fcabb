"""Engines in one process that all do the same work, step by step, so that steps can be compared.

Each lane has an engine and a KV pool of its own, and gets the same requests in the same order:
greedy, with the same weights, so that step n is the same batch in each of them, and its tokens are.
`verifier.mode` is what differs, and it goes round among the lanes: where an engine's memory happens
to lie is nobody's advantage.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from benchmarks.overhead import Block
from benchmarks.prompts import prompts
from engines.api import Output, Request, Sampling
from engines.embedded.engine import EmbeddedEngine

DOMAINS = 8
ON, OFF = "enforce", "off"


class OutOfStep(Exception):
    """Lanes gave different tokens: what they took can't be compared."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Requests of one kind, in tokens. Answers vary, so that requests don't end together."""

    name: str
    prompt: int
    shortest: int
    longest: int


class Supply:
    """Requests without end, every prompt different; the n-th is the same whoever asks for it."""

    def __init__(self, folder: Path, shape: Shape, seed: str) -> None:
        self._made: list[Request] = []
        self._prompts = prompts(folder, shape.prompt, seed)
        self._chance = random.Random(seed)
        self._shape = shape

    def __getitem__(self, number: int) -> Request:
        while len(self._made) <= number:
            self._made.append(self._next(len(self._made)))
        return self._made[number]

    def _next(self, number: int) -> Request:
        length = self._chance.randint(self._shape.shortest, self._shape.longest)
        ids = tuple(next(self._prompts))
        return Request(f"r{number}", f"d{number % DOMAINS}", ids, Sampling(length, temperature=0.0))


class Lane:
    """One engine with so many requests in it all the time."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.engine = engine
        self._supply: Iterator[Request] = iter(())
        self._inside: set[str] = set()

    def begin(self, requests: Iterator[Request], clients: int) -> None:
        """Forget what is inside, and keep so many of these inside from now on."""
        for id in self._inside:
            self.engine.abort(id)
        self._inside.clear()
        while self.engine.has_work():
            self.engine.step()
        self._supply = requests
        self._add(clients)

    def step_s(self, mode: str) -> tuple[float, list[Output]]:
        """CPU time of one step, in seconds, and what it said."""
        self.engine.verifier.mode = mode
        began = time.process_time()
        outputs = self.engine.step()
        spent = time.process_time() - began
        self._take(outputs)
        return spent, outputs

    def window_s(self, mode: str, steps: int) -> tuple[float, list[Output]]:
        """Wall time of so many steps, in seconds, of which none is on its way at the end."""
        self.engine.verifier.mode = mode
        said: list[Output] = []
        began = time.perf_counter()
        for _ in range(steps):
            said += self._take(self.engine.step())
        # A step is checked twice, and both checks of it must be of one mode.
        while self.engine._flights:
            said += self._take(self.engine._land(self.engine._flights.popleft()))
        return time.perf_counter() - began, said

    def _take(self, outputs: list[Output]) -> list[Output]:
        ended = [output.request_id for output in outputs if output.finish is not None]
        self._inside.difference_update(ended)
        self._add(len(ended))
        return outputs

    def _add(self, number: int) -> None:
        for request in islice(self._supply, number):
            self.engine.add(request)
            self._inside.add(request.id)


class Lanes:
    """All of them in step."""

    def __init__(self, engines: Sequence[EmbeddedEngine], chance: random.Random) -> None:
        self.lanes = [Lane(engine) for engine in engines]
        self._chance = chance

    def begin(self, requests: Supply | list[Request], clients: int) -> None:
        """Start all of them with the same requests."""
        for lane in self.lanes:
            lane.begin((requests[number] for number in range(_len(requests))), clients)

    def block(self) -> Block:
        """CPU seconds of the next step of three lanes, one with the check and two without.

        Which lane is which, and their order, are drawn. Raises OutOfStep.
        """
        modes = self._chance.sample([(0, ON), (1, OFF), (2, OFF)], 3)
        spent, said = [0.0] * 3, []
        for lane, (place, mode) in zip(self._drawn(), modes, strict=True):
            spent[place], outputs = lane.step_s(mode)
            said.append(outputs)
        _assert_alike(said)
        return Block(*spent)

    def pair(self, steps: int) -> tuple[float, float]:
        """Wall seconds of the next steps of two lanes, with the check and without.

        Which lane is which, and their order, are drawn. Raises OutOfStep.
        """
        modes = self._chance.sample([(0, ON), (1, OFF)], 2)
        spent, said = [0.0] * 2, []
        for lane, (place, mode) in zip(self._drawn(), modes, strict=True):
            spent[place], outputs = lane.window_s(mode, steps)
            said.append(outputs)
        _assert_alike(said)
        return spent[0], spent[1]

    def checked(self) -> tuple[float, int]:
        """Seconds that checks took since the start, and the pages that they compared."""
        phases = [one for lane in self.lanes for one in lane.engine.verifier.by_phase.values()]
        return sum(one.seconds for one in phases), sum(one.pages for one in phases)

    def close(self) -> None:
        """Give the engines' memory back."""
        for lane in self.lanes:
            lane.engine.close()
        self.lanes.clear()

    def _drawn(self) -> list[Lane]:
        return self._chance.sample(self.lanes, len(self.lanes))


def _len(requests: Supply | list[Request]) -> int:
    return len(requests) if isinstance(requests, list) else 10**9


def _assert_alike(said: list[list[Output]]) -> None:
    first, *others = ([(one.request_id, one.token_ids) for one in outputs] for outputs in said)
    if any(other != first for other in others):
        raise OutOfStep("the same step gave different tokens with the check and without it")
