"""How things stand now in a gateway's process, read when somebody asks."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.metrics.families import Sample
from gateway.relay.placement import Placement
from gateway.relay.trust import Trust


def gauges(
    in_progress: int,
    placement: Placement,
    *,
    is_blind: bool,
    in_doubt: bool,
    limits_together: bool = True,
) -> Iterator[Sample]:
    """All there are."""
    yield Sample("bulkhead_requests_in_progress", {}, in_progress)
    for line in placement.lines():
        yield Sample("bulkhead_waiting", {"model": line.model}, line.num_waiting)
        for place in line.places:
            labels = {"model": line.model, "place": place.host_id}
            yield Sample("bulkhead_place_in_flight", labels, place.in_flight)
            yield Sample("bulkhead_place_takes", labels, place.takes)
            if place.guard is not None:
                yield from _guard(place.guard, labels)
    yield Sample("bulkhead_keys_blind", {}, is_blind)
    yield Sample("bulkhead_ledger_in_doubt", {}, in_doubt)
    yield Sample("bulkhead_limits_together", {}, limits_together)


def _guard(guard: Trust, labels: dict[str, str]) -> Iterator[Sample]:
    yield Sample("bulkhead_guard_trusted", labels, not guard.fault)
    yield Sample("bulkhead_guard_violations", labels, guard.violations)
    yield Sample("bulkhead_guard_unwatched", labels, guard.unwatched)
    if guard.last is not None:
        yield Sample("bulkhead_guard_steps", labels, guard.last.steps)
