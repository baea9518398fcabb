"""Counts the completions in progress in this process, and refuses more than it may hold."""

from __future__ import annotations

from gateway.errors import GatewayBusy


class InFlight:
    """How many there are now. It outlives a reload; the limit comes with each request."""

    def __init__(self) -> None:
        self.count = 0

    def counted(self, limit: int) -> InFlight:
        """Holds one place while it is entered. Raises GatewayBusy if there is none."""
        if self.count >= limit:
            raise GatewayBusy(f"this gateway runs {limit} completions already; try again")
        return self

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *_: object) -> None:
        self.count -= 1
