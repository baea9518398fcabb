"""What bench_gateway found: tables for people, the bars, and the last line for machines."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.gateway.bodies import PACE_MS
from benchmarks.gateway.peers import SGLANG_ROUTER, TENSORZERO
from benchmarks.gateway.scenes import Figures
from benchmarks.gateway.ways import DIRECT, NAIVE, OURS
from benchmarks.report import at_least, at_most, emit, foreign_note, median, table

PHASES = 6
NONE = float("nan")
HEAD = (
    *("gateway, on one core", "req/s c=1", "p50 ms", "req/s c=50", "CPU ms/req"),
    *("TTFC p50/p99 ms", "gap p99 ms", "CPU paced", "chunks/s saturated"),
    *("far p50/p99 ms", "memory MB", "errors"),
)


@dataclass(frozen=True, slots=True)
class Found:
    """All that was measured, by way."""

    rounds: list[dict[str, Figures]]
    cancels: dict[str, dict[str, float | None]]
    stuck_kib: dict[str, float]
    ready_s: dict[str, float]
    fdatasync_ms: float
    foreign: float

    def median(self, way: str, name: str) -> float:
        """Of the rounds; NaN if it wasn't there."""
        return median([one[way].get(name, NONE) for one in self.rounds if way in one])

    def ratio(self, name: str, to: str) -> float:
        """Ours over another's, within each round; NaN if that wasn't there."""
        return median(
            [
                one[OURS][name] / one[to].get(name, NONE)
                for one in self.rounds
                if to in one and one[to].get(name, NONE)
            ]
        )

    def added(self, name: str, way: str = OURS) -> float:
        """To direct, within each round."""
        ways = [(one[way], one[DIRECT]) for one in self.rounds if way in one]
        return median([ours.get(name, NONE) - theirs[name] for ours, theirs in ways])

    def phases(self, way: str) -> int:
        """In how many of the phases its engine heard of the end within half a second."""
        return sum(one is not None and one <= 0.5 for one in self.cancels[way].values())


def tell(found: Found) -> None:
    """Print it all."""
    ways = list(found.rounds[0])
    print(table(HEAD, [_row(found, way) for way in ways]))
    others = [way for way in ways if way not in (OURS, DIRECT)]
    names = ("rps_1", "rps_50", "cpu_ms", "chunks_per_s", "cpu_paced")
    ratios = [(name, *(found.ratio(name, way) for way in others)) for name in names]
    print("\n" + table(("bulkhead", *(f"x {way}" for way in others)), ratios))
    added = ("p50_ms_1", "ttfc_p50_ms", "ttfc_p99_ms", "far_p50_ms", "far_p99_ms")
    rows = [(way, *(found.added(name, way) for name in added)) for way in (OURS, *others)]
    print("\n" + table(("added ms", "p50 c=1", "TTFC p50", "TTFC p99", "far p50", "far p99"), rows))
    cancelled = [
        (way, f"{found.phases(way)} of {PHASES}", found.stuck_kib[way], found.ready_s[way])
        for way in found.cancels
    ]
    head = ("", "cancels heard in 0.5 s", "KiB a stuck reader", "ready in s")
    print("\n" + table(head, cancelled))
    note = f"one fdatasync of the disk: {found.fdatasync_ms:.2f} ms; {foreign_note(found.foreign)}"
    print(f"\n{note}")
    emit("gateway", _targets(found), _raw(found))


def _targets(found: Found) -> dict[str, dict[str, object]]:
    targets = {
        "x_naive_rps_at_50": at_least(found.ratio("rps_50", NAIVE), 12),
        "x_tensorzero_rps_at_50": at_least(found.ratio("rps_50", TENSORZERO.name), 1),
        "x_sglang_router_rps_at_50_stretch": at_least(found.ratio("rps_50", SGLANG_ROUTER.name), 1),
        "cpu_ms_per_request": at_most(found.median(OURS, "cpu_ms"), 0.25),
        "cpu_ms_per_request_stretch": at_most(found.median(OURS, "cpu_ms"), 0.15),
        "added_ttfc_p50_ms": at_most(found.added("ttfc_p50_ms"), 2),
        "added_ttfc_p99_ms": at_most(found.added("ttfc_p99_ms"), 10),
        "gap_p99_over_pace": at_most(found.median(OURS, "gap_p99_ms") / PACE_MS, 1.25),
        "cpu_share_paced": at_most(found.median(OURS, "cpu_paced"), 0.7),
        "far_added_p50_ms": at_most(found.added("far_p50_ms"), 5),
        "far_added_p99_ms": at_most(found.added("far_p99_ms"), 20),
        "memory_mb": at_most(found.median(OURS, "memory_mb"), 120),
        "stuck_reader_kib": at_most(found.stuck_kib[OURS], 256),
        "ready_s": at_most(found.ready_s[OURS], 1.5),
        "cancels_heard": at_least(found.phases(OURS), PHASES),
        "errors": at_most(sum(one[OURS]["errors"] for one in found.rounds), 0),
    }
    # a peer that isn't installed has no ratio
    return {name: one for name, one in targets.items() if one["value"] == one["value"]}


def _raw(found: Found) -> dict[str, object]:
    medians = {
        way: {name: found.median(way, name) for name in figures}
        for way, figures in found.rounds[0].items()
    }
    return {
        "foreign_cpu": found.foreign,
        "fdatasync_ms": found.fdatasync_ms,
        "cancels_s": found.cancels,
        "stuck_kib": found.stuck_kib,
        "ready_s": found.ready_s,
        "medians": medians,
        "rounds": found.rounds,
    }


def _row(found: Found, way: str) -> tuple[object, ...]:
    one = {name: found.median(way, name) for name in found.rounds[0][DIRECT]}
    return (
        way,
        *(one[name] for name in ("rps_1", "p50_ms_1", "rps_50", "cpu_ms")),
        f"{one['ttfc_p50_ms']:.1f}/{one['ttfc_p99_ms']:.1f}",
        f"{one['gap_p99_ms']:.1f}",
        f"{one['cpu_paced']:.0%}",
        one["chunks_per_s"],
        f"{one['far_p50_ms']:.1f}/{one['far_p99_ms']:.1f}",
        f"{one['memory_mb']:.0f}",
        f"{one['errors']:.0f}",
    )
