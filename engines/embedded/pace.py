"""How many drafts a seq may propose, by what became of its last ones. Pure.

A draft costs computing whether it is right or not. A step takes a time that doesn't depend on how
many rows it has, in which the weights are read, and a bit for each token: where few rows run drafts
are nearly free, and where many do each must be likely. A seq whose drafts are rejected proposes
fewer, then none for a while, and each time that they are rejected again for twice as long.
"""

from __future__ import annotations

FIRST_RATE = 0.4  # of a seq of which nothing is known
WEIGHT = 0.4  # of the newest step in the rate
FREE_TOKENS = 5  # that take as long to compute as the weights to read; measured: 3 (INT4) to 8
SHORTEST_REST, LONGEST_REST = 32, 256  # tokens


def least_rate(num_rows: int) -> float:
    """The share of drafts that must be right, so that a step yields more for its time than without.

    A step without drafts takes FREE_TOKENS + num_rows units of time for num_rows tokens.
    """
    return num_rows / (num_rows + FREE_TOKENS)


class Pace:
    """`rate` is the share of drafts accepted lately."""

    def __init__(self, most: int) -> None:
        self.rate = FIRST_RATE
        self._most = most
        self._rest = SHORTEST_REST
        self._rests_until = 0

    def allowed(self, length: int, num_rows: int) -> int:
        """Drafts that a seq of `length` tokens may propose while so many run."""
        if length < self._rests_until or self.rate < least_rate(num_rows):
            return 0
        return max(1, round(self._most * self.rate))

    def judge(self, length: int, num_rows: int, proposed: int, accepted: int) -> None:
        """What became of drafts proposed, now that the seq has `length` tokens."""
        self.rate += WEIGHT * (accepted / proposed - self.rate)
        if accepted == proposed:
            self._rest = SHORTEST_REST
        elif self.rate < least_rate(num_rows):
            self.rate = FIRST_RATE
            self._rests_until = length + self._rest
            self._rest = min(2 * self._rest, LONGEST_REST)
