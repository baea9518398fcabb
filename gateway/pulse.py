"""How fast each model has answered a tenant lately, in this process: the catalog's health figures.

A tenant's own answers alone. A median that others' are in would give them away: whoever fills the
rest of the window with known values reads off what remains, and so whether a prefix was cached.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from statistics import median

from gateway.meter import Pace

KEPT = 64  # answers of a model for a tenant
MAX_SERIES = 1024  # pairs of tenant and model; those that had no answer for longest are forgotten


class Pulse:
    """The last streamed answers of each model for each tenant. It outlives a reload."""

    def __init__(self) -> None:
        self._series: OrderedDict[tuple[str, str], deque[Pace]] = OrderedDict()

    def note(self, tenant_id: str, model: str, pace: Pace | None) -> None:
        """Remember an answer that came to its end."""
        if pace is None:
            return
        series = self._series.setdefault((tenant_id, model), deque(maxlen=KEPT))
        series.append(pace)
        self._series.move_to_end((tenant_id, model))
        if len(self._series) > MAX_SERIES:
            self._series.popitem(last=False)

    def figures(self, tenant_id: str, model: str) -> dict[str, float | None]:
        """Medians: seconds to the first token, and tokens a second. None before any answer."""
        paces = self._series.get((tenant_id, model), ())
        rates = [pace.tokens_per_s for pace in paces if pace.tokens_per_s is not None]
        return {
            "ttft_p50": round(median(pace.ttft_s for pace in paces), 4) if paces else None,
            "tps_p50": round(median(rates), 1) if rates else None,
        }
