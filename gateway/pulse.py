"""How fast each model has answered lately, in this process: the catalog's health figures."""

from __future__ import annotations

from collections import defaultdict, deque
from statistics import median

from gateway.meter import Pace

KEPT = 64  # answers of each model


class Pulse:
    """The last streamed answers of each model. It outlives a reload."""

    def __init__(self) -> None:
        self._paces: dict[str, deque[Pace]] = defaultdict(lambda: deque(maxlen=KEPT))

    def note(self, model: str, pace: Pace | None) -> None:
        """Remember an answer that came to its end."""
        if pace is not None:
            self._paces[model].append(pace)

    def figures(self, model: str) -> dict[str, float | None]:
        """Medians: seconds to the first token, and tokens a second. None before any answer."""
        paces = self._paces.get(model, ())
        rates = [pace.tokens_per_s for pace in paces if pace.tokens_per_s is not None]
        return {
            "ttft_p50": round(median(pace.ttft_s for pace in paces), 4) if paces else None,
            "tps_p50": round(median(rates), 1) if rates else None,
        }
