"""An engine's figures, gathered from its parts: gauges of now and counters since the start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from engines.api import Stats
from engines.embedded.incidents import Incidents
from engines.embedded.scheduler import Scheduler
from engines.embedded.tables import Tables
from engines.embedded.verify import Verifier


def figures(
    counted: Mapping[str, int],
    scheduler: Scheduler,
    verifier: Verifier,
    incidents: Incidents,
    tables: Tables,
) -> Stats:
    """`counted`: what the engine counts itself, by the names that Stats has."""
    own: dict[str, Any] = dict(counted)
    return Stats(
        **own,
        waiting=len(scheduler.waiting),
        running=len(scheduler.running),
        preempted=scheduler.num_preempted,
        drafted_tokens=scheduler.num_drafted,
        accepted_tokens=scheduler.num_accepted,
        pages=tables.pool.count(),
        tag_pages_checked=verifier.pages_checked,
        tag_check_s=sum(phase.seconds for phase in verifier.by_phase.values()),
        tag_mismatches=sum(incidents.mismatches.values()),
        mismatches={"/".join(key): n for key, n in incidents.mismatches.items()},
        scrubbed=asdict(tables.scrubber.counted) if tables.scrubber else {},
        limbo_age_s=tables.pool.limbo_age_s,
        retirement=incidents.retirement,
    )
