"""What followed the newest tokens of a seq the last time that they stood there: its drafts.

Told the tokens of one seq, prompt and answer; never another's. A draft is only a guess: it becomes
a token if the model chooses it, and no answer depends on what is guessed here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LONGEST, SHORTEST = 3, 2  # how many of the newest tokens must have stood there before
ROOM = 256  # tokens, to begin with


class Lookup:
    """Finds the end of one list, which only grows, in that list itself."""

    def __init__(self) -> None:
        self._tokens = np.zeros(ROOM, np.int32)  # a copy: a search in Python's list takes too long
        self._length = 0

    def drafts(self, tokens: Sequence[int], most: int) -> tuple[int, ...]:
        """At most so many tokens that may follow; none if the newest never stood there before."""
        self._follow(tokens)
        at = self._last_match()
        if at is None:
            return ()
        # Where the match runs into the end, what repeats there is taken to go on.
        period = self._length - 1 - at
        return tuple(int(self._tokens[at + 1 + ahead % period]) for ahead in range(most))

    def _follow(self, tokens: Sequence[int]) -> None:
        if len(tokens) > len(self._tokens):
            self._tokens = np.resize(self._tokens, 2 * len(tokens))
        self._tokens[self._length : len(tokens)] = tokens[self._length :]
        self._length = len(tokens)

    def _last_match(self) -> int | None:
        """Where the newest token stood last, after as many of those before it as can be found."""
        own = self._tokens[: self._length]
        found = np.flatnonzero(own[:-1] == own[-1:])
        for age in range(1, LONGEST):
            earlier = found[found >= age]
            longer = earlier[own[earlier - age] == own[-1 - age]] if len(earlier) else earlier
            if not len(longer):
                return int(found[-1]) if len(found) and age >= SHORTEST else None
            found = longer
        return int(found[-1])
