"""A barrier inside a step: it stops there until it is told to go on, so no race is left to luck."""

from __future__ import annotations

import threading

from engines.embedded.batch import Batch
from engines.embedded.engine import EmbeddedEngine
from tests.engines.helpers import Answers

PATIENCE_S = 60.0


class Gate:
    """Holds the `number`-th step of an engine (from 1), whose steps overlap, at a named point."""

    def __init__(self, engine: EmbeddedEngine, point: str, number: int) -> None:
        self._engine = engine
        self._point, self._number = point, number
        self._launched = engine._num_launched
        self._reached, self._go = threading.Event(), threading.Event()
        engine.runway.at = self._at

    def _at(self, point: str, batch: Batch) -> None:
        self._launched += point == "launched"
        if point == self._point and self._launched == self._number:
            self._reached.set()
            assert self._go.wait(PATIENCE_S), "nobody opened the gate"

    def drive_to(self, answers: Answers) -> None:
        """Step until the held step is the one on its way, and stands at the gate."""
        while self._engine._num_launched < self._number:
            answers.take(self._engine.step())
        assert self._reached.wait(PATIENCE_S), "the step never came to the gate"

    def open(self) -> None:
        """Let the step go on."""
        self._go.set()
