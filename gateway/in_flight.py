"""Counts the completions in progress in this process, and refuses more than it may hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.errors import GatewayBusy


class InFlight:
    """How many there are now. It outlives a reload; the limit comes with each request."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def counted(self, limit: int) -> Iterator[None]:
        """Holds one place. Raises GatewayBusy if there is none."""
        if self.count >= limit:
            raise GatewayBusy(f"this gateway runs {limit} completions already; try again")
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1
