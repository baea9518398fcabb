"""How many drafts a seq may propose, by what became of its last ones. Pure.

A draft costs computing whether it is right or not. A seq whose drafts are rejected proposes fewer,
then none for a while, and each time that they are rejected again for twice as long.
"""

from __future__ import annotations

WEIGHT = 0.25  # of the newest step in the rate
LEAST_RATE = 0.2  # accepted of proposed: with less, a draft costs more than it brings
SHORTEST_REST, LONGEST_REST = 16, 256  # tokens


class Pace:
    """`rate` is the share of drafts accepted lately; nothing is known of the first ones."""

    def __init__(self, most: int) -> None:
        self.rate = 0.5
        self._most = most
        self._rest = SHORTEST_REST
        self._rests_until = 0

    def allowed(self, length: int) -> int:
        """Drafts that a seq of `length` tokens may propose."""
        return 0 if length < self._rests_until else max(1, round(self._most * self.rate))

    def judge(self, length: int, proposed: int, accepted: int) -> None:
        """What became of drafts proposed, now that the seq has `length` tokens."""
        self.rate += WEIGHT * (accepted / proposed - self.rate)
        if self.rate >= LEAST_RATE:
            if accepted == proposed:
                self._rest = SHORTEST_REST
            return
        self.rate = LEAST_RATE
        self._rests_until = length + self._rest
        self._rest = min(2 * self._rest, LONGEST_REST)
