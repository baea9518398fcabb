"""Which request events somebody wants to see. Pure."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

from gateway.admin.problems import BadParameter
from gateway.admin.query import single
from gateway.events import Result

NUMBER = r"[0-9]*\.?[0-9]+(e-?[0-9]{1,3})?"
RESULTS: tuple[str, ...] = get_args(Result)


@dataclass(frozen=True, slots=True)
class Filter:
    """Every condition must hold; an empty one always does."""

    results: tuple[Result, ...] = ()
    model: str = ""
    tenant: str = ""  # its id or its name
    search: str = ""  # in any value, whatever its case
    sampling_rate: float = 1.0

    def wants(self, event: dict[str, Any]) -> bool:
        """Whether to show this event."""
        return (
            (not self.results or event.get("result") in self.results)
            and (not self.model or event.get("model") == self.model)
            and (not self.tenant or self.tenant in (event.get("tenant"), event.get("tenant_name")))
            and (not self.search or self._found_in(event))
            and self._drawn(event)
        )

    def _found_in(self, event: dict[str, Any]) -> bool:
        wanted = self.search.lower()
        return any(wanted in str(value).lower() for value in event.values())

    def _drawn(self, event: dict[str, Any]) -> bool:
        """By the request's id, so that all who sample at one rate see the same requests."""
        if self.sampling_rate >= 1:
            return True
        draw = zlib.crc32(str(event.get("request_id")).encode())
        return draw < self.sampling_rate * 2**32


def parse(query: Sequence[tuple[str, str]]) -> Filter:
    """The filter in a query string: `status` may be repeated. Raises BadParameter."""
    known = ("status", "model", "tenant", "search", "sampling_rate")
    given = single(query, known, repeatable=("status",))
    results = [value for name, value in query if name == "status"]
    if wrong := [value for value in results if value not in RESULTS]:
        raise BadParameter(f"status: expected {', '.join(RESULTS)}, found {wrong[0][:64]!r}")
    return Filter(
        results=cast("tuple[Result, ...]", tuple(results)),
        model=given.get("model", ""),
        tenant=given.get("tenant", ""),
        search=given.get("search", ""),
        sampling_rate=_rate(given.get("sampling_rate", "1")),
    )


def _rate(text: str) -> float:
    rate = float(text) if re.fullmatch(NUMBER, text) else -1.0
    if not 0 < rate <= 1:
        raise BadParameter(f"sampling_rate: expected more than 0, up to 1, found {text[:64]!r}")
    return rate
