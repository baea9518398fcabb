"""How often a request is sent again before its first byte: seldom enough to multiply no outage.

Per model a purse of retries: each request adds a little to it, each retry takes one out. So when
everything fails, a fifth more is sent than is asked for, and not three times as much.
"""

from __future__ import annotations

MAX_ATTEMPTS = 3  # of one request, at one model
MAX_SENT = (
    2  # of those, sent whole to a server that then broke: it may be the request that breaks it
)
SHARE = 0.2
PURSE = 10.0


class RetryBudget:
    """One model's purse."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = PURSE

    def asked(self) -> None:
        """A request came, and was sent for the first time."""
        self._left = min(PURSE, self._left + SHARE)

    def take(self) -> bool:
        """Whether there is a retry left. It is taken."""
        if self._left < 1:
            return False
        self._left -= 1
        return True
