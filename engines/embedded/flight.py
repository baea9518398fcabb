"""One step on its way: checked, computed, and waited for.

Steps run one after the other in a thread of their own, so that the next one can be prepared, and
requests aborted or preempted, while the model computes with the GIL released. The check runs in
that thread too, right before the forward pass, over what the pool says then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Protocol

from engines.embedded.batch import Batch
from engines.embedded.drafts import accepted
from engines.embedded.seq import Chunk, Seq
from engines.embedded.verify import Mismatch, Verifier

Point = Callable[[str, Batch], None]  # at "launched", "checked", "computed", in a step's thread


class Model(Protocol):
    """What computes a step."""

    def run(self, batch: Batch) -> dict[int, tuple[int, ...]]: ...  # see backend.Runner


@dataclass(frozen=True, slots=True)
class Landed:
    """What became of a step: what was computed, the tokens of its rows, and what was not to be."""

    batch: Batch
    tokens: dict[Chunk, tuple[int, ...]]
    mismatches: list[Mismatch]
    num_checked: int  # pages, before the forward pass


@dataclass(frozen=True, slots=True)
class Flight:
    """A launched step. `land` waits for its end and raises what it raised."""

    number: int
    batch: Batch  # as it was laid out
    result: SimpleQueue[Landed | BaseException]

    def land(self) -> Landed:
        """Wait for the step's end."""
        result = self.result.get()
        self.result.put(result)  # for whoever asks again
        if isinstance(result, BaseException):
            raise result
        return result


class Runway:
    """Launches steps. With `overlap`, `launch` returns at once; else the step has ended."""

    def __init__(self, model: Model, verifier: Verifier, *, overlap: bool) -> None:
        self.at: Point = lambda point, batch: None  # tests and faults stop or act here
        self._model = model
        self._verifier = verifier
        self._chosen: dict[Seq, int] = {}  # by the last step
        self._stopped: set[int] = set()  # serials of its rows that weren't to be computed
        self._is_closing = False
        # Plain queues: an executor's futures cost more than a check of all pages.
        self._launched: SimpleQueue[Flight | None] = SimpleQueue()
        self._overlaps = overlap
        self._thread: Thread | None = None  # begins with the first step

    def launch(self, number: int, batch: Batch) -> Flight:
        """Run a step after those launched before it."""
        flight = Flight(number, batch, SimpleQueue())
        if not self._overlaps:
            flight.result.put(self._run(batch))
            return flight
        if self._thread is None:
            self._thread = Thread(target=self._serve, name="step", daemon=True)
            self._thread.start()
        self._launched.put(flight)
        return flight

    def close(self) -> None:
        """Wait for the step that runs; none follows."""
        if self._thread is not None:
            self._is_closing = True
            self._launched.put(None)
            self._thread.join()

    def _serve(self) -> None:
        while (flight := self._launched.get()) is not None and not self._is_closing:
            try:
                flight.result.put(self._run(flight.batch))
            except BaseException as fault:  # noqa: BLE001 - whoever lands it is to meet it
                flight.result.put(fault)

    def _run(self, batch: Batch) -> Landed:
        laid_out = batch
        batch = self._continued(batch)
        self.at("launched", batch)
        batch, mismatches, num_checked = self._verifier.screen(batch)
        self._stopped = set() if batch is laid_out else _serials(laid_out) - _serials(batch)
        self.at("checked", batch)
        choices = self._model.run(batch) if batch.chunks else {}
        self.at("computed", batch)
        tokens: dict[Chunk, tuple[int, ...]] = {}
        self._chosen = {}
        for row, of_row in choices.items():
            chunk = batch.chunks[row]
            tokens[chunk] = accepted(chunk.drafts, of_row) if chunk.drafts else of_row
            self._chosen[chunk.seq] = tokens[chunk][-1]
        return Landed(batch, tokens, mismatches, num_checked)

    def _continued(self, batch: Batch) -> Batch:
        """With what the last step chose, and without rows that would go on from what it stopped."""
        batch = batch.with_tokens(self._chosen)
        if not self._stopped:
            return batch
        void = [row for row, chunk in enumerate(batch.chunks) if chunk.serial in self._stopped]
        return batch.without(void) if void else batch


def _serials(batch: Batch) -> set[int]:
    return {chunk.serial for chunk in batch.chunks}
