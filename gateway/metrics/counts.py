"""What has ended is counted here: a dictionary or two for each request, and nothing is awaited."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.metrics.families import MAX_TENANTS, OTHER, Sample

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
TOKEN_CLASSES = ("input", "cached_input", "output")


class Histogram:
    """Durations by upper bounds, in seconds."""

    __slots__ = ("_counts", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * (len(SECONDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        self._counts[bisect_left(SECONDS, seconds)] += 1
        self._sum += seconds

    def samples(self, name: str, labels: dict[str, str]) -> Iterator[Sample]:
        """As Prometheus wants them: each bucket holds those before it, too."""
        total = 0
        for bound, count in zip((*SECONDS, "+Inf"), self._counts, strict=True):
            total += count
            yield Sample(f"{name}_bucket", {**labels, "le": str(bound)}, total)
        yield Sample(f"{name}_sum", labels, self._sum)
        yield Sample(f"{name}_count", labels, total)


class Counts:
    """One process's. Told of each request what its log line says; the text of none is in it."""

    def __init__(self, routes: Mapping[str, object]) -> None:
        self._routes = routes
        self._tenants: set[str] = set()
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._completions: Counter[tuple[str, str, str]] = Counter()
        self._tokens: Counter[tuple[str, str, str]] = Counter()
        self._limited: Counter[str] = Counter()
        self._over_bound: Counter[str] = Counter()
        self._seconds: dict[tuple[str, bool], Histogram] = {}
        self._first: dict[str, Histogram] = {}

    def saw(self, fields: Mapping[str, Any]) -> None:
        """A request has ended."""
        path, status = fields["path"], str(fields["status"])
        route = path if path in self._routes else OTHER
        self._requests[route, status, fields.get("code") or ""] += 1
        if limit := fields.get("limit"):
            self._limited[limit] += 1
        if (outcome := fields.get("outcome")) is None:
            return
        model, tenant = fields["model"], self._tenant(fields["tenant_name"])
        self._completions[model, tenant, outcome] += 1
        self._count_tokens(model, tenant, fields)
        if "claimed_output_tokens" in fields:
            self._over_bound[model] += 1
        streamed = bool(fields.get("stream"))
        spent = self._seconds.setdefault((model, streamed), Histogram())
        spent.add(fields["duration_ms"] / 1000)
        if (ttft_ms := fields.get("ttft_ms")) is not None:
            self._first.setdefault(model, Histogram()).add(ttft_ms / 1000)

    def samples(self) -> Iterator[Sample]:
        """All of it."""
        for (route, status, code), number in self._requests.items():
            labels = {"route": route, "status": status, "code": code}
            yield Sample("bulkhead_requests_total", labels, number)
        for (model, tenant, outcome), number in self._completions.items():
            labels = {"model": model, "tenant": tenant, "outcome": outcome}
            yield Sample("bulkhead_completions_total", labels, number)
        for (model, tenant, token_class), number in self._tokens.items():
            labels = {"model": model, "tenant": tenant, "class": token_class}
            yield Sample("bulkhead_tokens_total", labels, number)
        for limit, number in self._limited.items():
            scope, _, kind = limit.partition(" ")
            yield Sample("bulkhead_limited_total", {"scope": scope, "kind": kind}, number)
        for model, number in self._over_bound.items():
            yield Sample("bulkhead_usage_over_bound_total", {"model": model}, number)
        for (model, streamed), histogram in self._seconds.items():
            labels = {"model": model, "streamed": str(streamed).lower()}
            yield from histogram.samples("bulkhead_request_seconds", labels)
        for model, histogram in self._first.items():
            yield from histogram.samples("bulkhead_first_token_seconds", {"model": model})

    def _count_tokens(self, model: str, tenant: str, fields: Mapping[str, Any]) -> None:
        cached = fields.get("cached_input_tokens") or 0
        uncached = (fields.get("input_tokens") or 0) - cached
        numbers = (uncached, cached, fields.get("output_tokens") or 0)
        for token_class, number in zip(TOKEN_CLASSES, numbers, strict=True):
            if number:
                self._tokens[model, tenant, token_class] += number

    def _tenant(self, name: str) -> str:
        if name not in self._tenants:
            if len(self._tenants) >= MAX_TENANTS:
                return OTHER
            self._tenants.add(name)
        return name
