"""Requests of several salts that come, are cancelled and paused, as chance has it."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator

from engines.trtllm.shadow import Shadow
from tests.engines.trtllm.executor import Executor
from tests.engines.trtllm.setups import Request, Setup

SALTS = "abcd"
# Few different tokens, and prompts that begin alike: most share blocks with an earlier one.
OPENINGS = ([0, 1, 1] * 20, [1, 0] * 30, [0] * 60)

SETUPS = {
    "as the check lets pass": Setup(),
    "partial reuse": Setup(partial=True),
    "no reuse": Setup(reuses=False),
    "overlap": Setup(overlaps=True),
    "chunks": Setup(chunk=10),
    "a prompt is shared at once": Setup(shares_at_once=True, overlaps=True, chunk=20),
    "partial reuse, overlap, chunks": Setup(partial=True, overlaps=True, chunk=10),
    "cancels are told": Setup(tells_cancels=True),
    "pauses": Setup(pauses=True, overlaps=True, tables=True),
    "pauses, partial reuse, chunks": Setup(pauses=True, partial=True, chunk=10, tables=True),
    "a window": Setup(reuses=False, window=3, tables=True),
}


class Lives:
    """Drives an executor. Ids are new ones, or from a few if `num_ids` is given."""

    def __init__(
        self, setup: Setup, seed: int, num_ids: int = 0, shadow: Shadow | None = None
    ) -> None:
        self.executor = Executor(setup, seed, shadow)
        self.chance = random.Random(seed)
        self._num_ids = num_ids
        self._last_id = 0
        self._earlier: deque[Request] = deque(maxlen=20)

    def steps(self, number: int) -> Iterator[int]:
        """Yields after each."""
        for step in range(number):
            self.live()
            self.executor.step()
            yield step

    def live(self) -> None:
        executor, chance = self.executor, self.chance
        if len(executor.waiting) < 3 and chance.random() < 0.6:
            self.submit()
        if executor.running and chance.random() < 0.05:
            executor.cancel(chance.choice(executor.running))
        if executor.setup.pauses and executor.running and chance.random() < 0.05:
            self.pause()
        if chance.random() < 0.001:
            executor.fail_all()

    def submit(self) -> None:
        executor, chance = self.executor, self.chance
        self._last_id += 1
        id_ = self._last_id % self._num_ids if self._num_ids else self._last_id
        if any(request.id == id_ for request in (*executor.waiting, *executor.running)):
            return
        salt, prompt = chance.choice(SALTS), self._prompt()
        answered = [one for one in self._earlier if one.known >= one.length]
        if answered and chance.random() < 0.3:  # a text that was answered is gone on with
            earlier = chance.choice(answered)
            salt = earlier.salt if chance.random() < 0.8 else salt
            prompt = earlier.all[: earlier.known]
        self._earlier.append(executor.submit(id_, salt, prompt[:60], chance.randrange(1, 25)))

    def _prompt(self) -> list[int]:
        opening = self.chance.choice(OPENINGS)[: self.chance.randrange(1, 40)]
        return opening + [self.chance.randrange(2) for _ in range(self.chance.randrange(6))]

    def pause(self) -> None:
        request = self.chance.choice(self.executor.running)
        if request.has_blocks and not request.is_prefilling:
            self.executor.pause(request)

    def end_blamed(self) -> None:
        """As the hook does, some steps late."""
        for request in list(self.executor.running):
            if request in self.executor.blamed and self.chance.random() < 0.3:
                self.executor.cancel(request)
