"""Whether a request's next piece may go out, in a process that hands out TensorRT-LLM's text.

Closed unless it is known to be open: no guard, a guard that failed, or one whose requests have
other names than ours here, and nothing goes out.
"""

from __future__ import annotations

from pathlib import Path

from engines.trtllm.state import StateFile
from engines.trtllm.stops import Stops

PROVEN_BY = 64  # pieces with output, the first of a process


class Gate:
    """One a process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._state: StateFile | None = None
        self._stops: Stops | None = None
        self._unproven = PROVEN_BY
        self._opened()

    def lets_through(self, client: int, has_output: bool) -> bool:
        """Of the request that the server calls `client`, a piece with output or without."""
        if not self._is_sound():
            return False
        stops = self._stops
        assert stops is not None
        if has_output and self._unproven and not self._is_proven_by(stops, client):
            self.poison()
            return False
        return not stops.must_stop(client)

    def poison(self) -> None:
        """Nothing goes out any more, here and elsewhere."""
        if self._state is not None:
            self._state.poison()

    def _is_sound(self) -> bool:
        """A poisoned state may be that of a guard which another has taken the place of."""
        if self._state is None or self._state.is_poisoned:
            self._opened()
        return self._state is not None and not self._state.is_poisoned

    def _opened(self) -> None:
        state, stops = StateFile.open(self._folder), Stops.open(self._folder)
        if state is None or stops is None or state.boot != stops.boot:
            return
        self._state, self._stops = state, stops
        stops.watch()

    def _is_proven_by(self, stops: Stops, client: int) -> bool:
        """Whether the guard knows the request by this name.

        That the id which the hook is given is the one that the guard stops by is read in
        TensorRT-LLM's source and promised nowhere. Where it isn't, the first token of all doesn't
        pass, and the launcher, which waits for it, says so.
        """
        if not stops.has_met(client):
            return False
        self._unproven -= 1
        return True
