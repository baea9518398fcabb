"""Rank 0's half of the guard without TensorRT-LLM: the ledger, and what is made of its findings.

A violation is written to the journal, and its request's client is put into the set that hooks stop.
What can't be written or stopped alone poisons the guard: then every request is stopped.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from engines.trtllm.journal import Journal, JournalFull
from engines.trtllm.shadow import Scheduled, Shadow, Violation
from engines.trtllm.state import StateFile
from engines.trtllm.stops import Stops, StopsFull

log = logging.getLogger("bulkhead.guard")

MAX_CLIENTS = 65536  # the last requests, whose names are kept
ON_DEVICE = "device_table"  # a kind of violation: the device's table names another block


class Request(NamedTuple):
    """What of a request is read, when blocks are given to it."""

    id: int
    client: int | None  # the id by which the server knows it; None: this version doesn't tell
    salt: str | int | None  # or TensorRT-LLM's number of it
    blocks: Sequence[int]
    computed_tokens: int
    tokens: Sequence[int]
    adapter: int


class Watch:
    """One a server. Not for several threads, but `poison`, which any may call."""

    def __init__(self, folder: Path, tokens_per_block: int) -> None:
        """Raises OSError: no folder, or no room in it."""
        self._shadow = Shadow(tokens_per_block, requires_salt=True)
        self._journal = Journal(folder)
        self._state = StateFile.create(folder)
        self._stops = Stops.create(folder, self._state.boot)
        self._clients: dict[int, int | None] = {}
        self._is_passing = self._tells_passes = False
        self.num_violations = 0
        self._num_checked_on_device = 0

    @property
    def is_poisoned(self) -> bool:
        return self._state.is_poisoned

    def pool_is(self, num_blocks: int) -> None:
        """How many blocks there are."""
        self._shadow.set_pool(num_blocks)

    def allocated(self, request: Request) -> None:
        """Blocks were given to a request that begins, or begins anew."""
        self._check_passed()
        self._clients.pop(request.id, None)
        self._clients[request.id] = request.client
        if len(self._clients) > MAX_CLIENTS:
            del self._clients[next(iter(self._clients))]
        if request.client is not None:
            self._stops.meet(request.client)
        self._tell(
            self._shadow.allocated(
                request.id,
                request.salt,
                request.blocks,
                request.computed_tokens,
                request.tokens,
                request.adapter,
            )
        )

    def step(self, scheduled: Iterable[Scheduled]) -> None:
        """All that runs in the coming pass."""
        self._check_passed()
        self._tell(self._shadow.step(scheduled))
        self._is_passing = True
        self._tell_state()

    def finished(self, request: int, blocks: Sequence[int] | None = None) -> None:
        """It gives its blocks back; `blocks`: all that it had, where that is told.

        Its name is kept: it may be found at fault yet, and who has no name stops everybody.
        """
        self._tell(self._shadow.finished(request, blocks))

    def passed(self) -> None:
        """The pass ran to its end: TensorRT-LLM calls `wait_for_save` behind each that does."""
        self._is_passing, self._tells_passes = False, True

    def _check_passed(self) -> None:
        """A pass that broke off fails its requests, and leaves their blocks to be found."""
        if self._is_passing and self._tells_passes:
            log.warning("bulkhead guard: a pass broke off: what it computed isn't taken for there")
            self._shadow.failed()
        self._is_passing = False

    def found_on_device(self, faults: Iterable[tuple[int, int]], num_checked: int) -> None:
        """Requests whose table in the device's memory doesn't name the block that it should."""
        self._num_checked_on_device += num_checked
        for request, block in faults:
            self._tell(self._shadow.seen_elsewhere(request, ON_DEVICE, block))
        self._tell_state()

    def poison(self, error: Exception) -> None:
        """The guard failed: every request is stopped from now on.

        Only the error's kind and place are logged: its text might quote a prompt.
        """
        if not self._state.is_poisoned:
            place = traceback.extract_tb(error.__traceback__)[-1:]
            where = "".join(f" at {frame.filename}:{frame.lineno}" for frame in place)
            log.critical("bulkhead guard: failed, %s%s: poisoned", type(error).__name__, where)
        self._state.poison()

    @property
    def _steps(self) -> int:
        return self._shadow.counters.steps

    def _tell_state(self) -> None:
        checked = self._shadow.counters.checked + self._num_checked_on_device
        self._state.tell(self._steps, checked, self.num_violations)

    def _tell(self, violations: Iterable[Violation]) -> None:
        """Stopped, and written down."""
        for violation in violations:
            self.num_violations += 1
            client = self._clients.get(violation.request)
            self._stop(client)
            try:
                self._journal.append(_line(violation, client))
            except JournalFull as error:
                self.poison(error)

    def _stop(self, client: int | None) -> None:
        """One whose name isn't known can't be stopped alone. Where no hook reads, nobody asks."""
        try:
            if client is None:
                if self._stops.is_watched:
                    raise StopsFull("a request without a name")
            elif not self._stops.must_stop(client):
                self._stops.add(client)
        except StopsFull as error:
            self.poison(error)


def _line(violation: Violation, client: int | None) -> dict[str, Any]:
    return {
        "step": violation.step,
        "request": violation.request,
        "client": client,
        "salt": violation.salt,
        "salt_id": violation.salt_id,
        "kind": violation.kind,
        "block": violation.block,
    }
