"""One step on its way: checked, computed, and waited for.

Steps run one after the other in a thread of their own, so that the next one can be prepared, and
requests aborted or preempted, while the model computes with the GIL released. The check runs in
that thread too, right before the forward pass, over what the pool says then.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
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
    result: Future[Landed]

    def land(self) -> Landed:
        """Wait for the step's end."""
        return self.result.result()


class Runway:
    """Launches steps. With `overlap`, `launch` returns at once; else the step has ended."""

    def __init__(self, model: Model, verifier: Verifier, *, overlap: bool) -> None:
        self.at: Point = lambda point, batch: None  # tests and faults stop or act here
        self._model = model
        self._verifier = verifier
        self._thread = ThreadPoolExecutor(1, "step") if overlap else None
        self._chosen: dict[Seq, int] = {}  # by the last step
        self._stopped: set[int] = set()  # serials of its rows that weren't to be computed

    def launch(self, number: int, batch: Batch) -> Flight:
        """Run a step after those launched before it."""
        if self._thread is not None:
            return Flight(number, batch, self._thread.submit(self._run, batch))
        done: Future[Landed] = Future()
        done.set_result(self._run(batch))
        return Flight(number, batch, done)

    def close(self) -> None:
        """Wait for the step that runs; none follows."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def _run(self, batch: Batch) -> Landed:
        laid_out = batch
        batch = self._continued(batch)
        self.at("launched", batch)
        batch, mismatches, num_checked = self._verifier.screen(batch)
        self._stopped = _serials(laid_out) - _serials(batch)
        self.at("checked", batch)
        choices = self._model.run(batch) if batch.chunks else {}
        self.at("computed", batch)
        by_chunk = {batch.chunks[row]: of_row for row, of_row in choices.items()}
        tokens = {chunk: accepted(chunk.drafts, of_row) for chunk, of_row in by_chunk.items()}
        self._chosen = {chunk.seq: of_row[-1] for chunk, of_row in tokens.items()}
        return Landed(batch, tokens, mismatches, num_checked)

    def _continued(self, batch: Batch) -> Batch:
        """With what the last step chose, and without rows that would go on from what it stopped."""
        batch = batch.with_tokens(self._chosen)
        void = [row for row, chunk in enumerate(batch.chunks) if chunk.serial in self._stopped]
        return batch.without(void) if void else batch


def _serials(batch: Batch) -> set[int]:
    return {chunk.serial for chunk in batch.chunks}
