"""What a fault can be planted in just now: running requests, their pages, rows of a step."""

from __future__ import annotations

import numpy as np

from engines.api import EngineError
from engines.embedded.batch import Batch
from engines.embedded.engine import EmbeddedEngine
from engines.embedded.seq import Page, Seq


class FaultImpossible(EngineError):
    """There is nothing that this fault could be planted in just now."""

    code = "fault_impossible"


def need(engine: EmbeddedEngine, number: int) -> list[Seq]:
    """Running seqs that have answered, the newest first; those of different domains first."""
    running = [seq for seq in reversed(engine.scheduler.running) if seq.has_answered]
    apart = list({seq.request.domain: seq for seq in running}.values())
    found = apart if len(apart) >= number else running
    if len(found) < number:
        wanted = "a request" if number == 1 else f"{number} requests"
        raise FaultImpossible(f"{wanted} must be answering, and {_so_many(len(found))}")
    return found


def _so_many(number: int) -> str:
    return {0: "none is", 1: "only one is"}.get(number, f"only {number} are")


def need_two_tenants(engine: EmbeddedEngine) -> None:
    """Raises FaultImpossible unless seqs of two tenants have answered."""
    if len({seq.request.domain for seq in need(engine, 2)}) < 2:
        raise FaultImpossible("requests of two tenants must be answering, and all are of one")


def victim(engine: EmbeddedEngine) -> Seq:
    """The newest seq that has answered. Raises FaultImpossible."""
    return need(engine, 1)[0]


def own_page(engine: EmbeddedEngine, seq: Seq) -> int:
    """A page that it holds alone. Raises FaultImpossible."""
    for page in seq.block_table[seq.num_shared_pages :]:
        if engine.pool.refs[page] == 1 and engine.pool.holds(
            Page(page, seq.tags[seq.block_table.index(page)])
        ):
            return page
    raise FaultImpossible(f"{seq.request.id} shares all its pages")


def has_two_tenants(batch: Batch) -> bool:
    """Whether rows of two domains are in a step."""
    return len(set(batch.row_domains.tolist())) > 1


def rows_apart(batch: Batch) -> tuple[int, int]:
    """Two rows of different domains."""
    return 0, int(np.flatnonzero(batch.row_domains != batch.row_domains[0])[0])
