"""The last counters of hosts that have ended, kept for a while.

A host is replaced within seconds of finding a page of another tenant's. Whoever reads counters
every minute must find what it counted all the same. Pure: the time is an argument.
"""

from __future__ import annotations

from collections import deque

from engines.api import Stats
from runtime.node_wire import GoneHost, HostView

KEPT_S = 900.0
MAX_KEPT = 256  # hosts that come and go every second must not fill the memory of who reads


class Departed:
    """Hosts that are gone, the last one last. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, GoneHost]] = deque(maxlen=MAX_KEPT)

    def note(self, host: HostView, counters: Stats, now: float) -> None:
        """A host has ended."""
        self._kept.append((now, GoneHost(id=host.id, model=host.model, stats=counters)))

    def lately(self, now: float) -> list[GoneHost]:
        """Those that ended within the last KEPT_S seconds."""
        while self._kept and now - self._kept[0][0] > KEPT_S:
            self._kept.popleft()
        return [host for _, host in self._kept]
