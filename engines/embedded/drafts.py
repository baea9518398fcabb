"""Drafts of one seq: proposed from its own tokens, taken as far as the model chooses the same.

Told tokens; never told pages, steps or what else runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from engines.embedded.lookup import Lookup
from engines.embedded.pace import Pace


class Drafter:
    """Proposes at most `most` drafts a step, fewer or none while they keep being rejected."""

    def __init__(self, most: int) -> None:
        self.lookup = Lookup()
        self._pace = Pace(most)

    def drafts(self, tokens: Sequence[int], most: int, num_rows: int) -> tuple[int, ...]:
        """At most so many guesses of what follows these tokens, while so many seqs run."""
        most = min(most, self._pace.allowed(len(tokens), num_rows))
        return self.lookup.drafts(tokens, most) if most > 0 else ()

    def hope(self, tokens: Sequence[int], most: int, num_rows: int) -> float:
        """How many of them will be right, if it goes on as lately."""
        return self._pace.rate * len(self.drafts(tokens, most, num_rows))

    def judge(self, length: int, num_rows: int, num_drafts: int, num_right: int) -> None:
        """What became of drafts, now that there are so many tokens."""
        self._pace.judge(length, num_rows, num_drafts, num_right)


def accepted(drafts: Sequence[int], choices: Sequence[int]) -> tuple[int, ...]:
    """The model's choices up to the first that isn't the draft it was computed after.

    `choices[i]` follows the first i drafts: it counts if they are what the model itself chose.
    There are fewer than 1 + len(drafts) of them if a later one couldn't be told.
    """
    agreed = 0
    for draft, choice in zip(drafts, choices, strict=False):
        if draft != choice:
            break
        agreed += 1
    return tuple(choices[: agreed + 1])
