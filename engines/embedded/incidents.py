"""What follows a mismatch beyond the row that is stopped: the record of it, and its severity.

A page of the same domain under an old tag is a bug; a page of another domain is a security
incident: the engine takes no new request, forgets what it cached for both domains, and asks to be
replaced. Too many quarantined pages, and generations that near their end, ask for that too. The
record names requests, pages, tags and states; never tokens or text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import structlog

from engines.embedded import tags
from engines.embedded.batch import Batch
from engines.embedded.pages import State
from engines.embedded.seq import Chunk
from engines.embedded.tables import Tables
from engines.embedded.verify import Mismatch

log = structlog.get_logger()

QUARANTINE_SHARE = 0.05  # of the pool; more than that, and it wants a new one
QUARANTINE_PAGES = 16  # however small the pool


class Incidents:
    """`retirement` says why this engine should be drained and replaced; "" while it needn't."""

    def __init__(self, tables: Tables, mode: str) -> None:
        self.retirement = ""
        self.mismatches: Counter[tuple[str, str]] = Counter()  # (phase, kind)
        self._pool, self._prefix = tables.pool, tables.prefix
        self._page_size = tables.page_size
        self._mode = mode
        self._told = (0, "", "")  # step, request and kind of the last event

    def record(self, step: int, mismatch: Mismatch) -> None:
        """One mismatch of a live row, before the row's pages are given up."""
        self.mismatches[mismatch.phase, mismatch.kind] += 1
        told = (step, mismatch.chunk.seq.request.id, mismatch.kind)
        if told != self._told:  # one event a row, however many of its pages are wrong
            self._told = told
            self._log(step, mismatch)
        if mismatch.kind == "domain" and self._mode == "enforce":
            self._seal_off(mismatch)

    def suspects(self, live: Sequence[Mismatch], ran: Batch | None) -> set[int]:
        """Pages that go out of use, whoever has them, after these mismatches of live rows.

        What a row has written that `ran` all the same; and a page of a row's own that it wasn't to
        write any more: then it was sealed, or shared, too soon, and nobody may read it.
        """
        own = {one.page for one in live if one.kind == "slot" and one.expected == one.found}
        rows = {one.row for one in live} if ran is not None else set()
        return own.union(*(ran.written(row, self._page_size) for row in rows if ran is not None))

    def found_broken(self, step: int, chunk: Chunk) -> None:
        """A row whose numbers were not finite."""
        request = chunk.seq.request
        log.error("kv_not_finite", step=step, request=request.id, domain=request.domain)

    def found_corrupt(self, page: int, what: str) -> None:
        """A page whose bytes aren't as they must be."""
        log.error("kv_page_corrupt", page=page, what=what, **self._facts(page))

    def review(self) -> None:
        """Whether what has gathered asks for a new engine."""
        quarantined = self._pool.num_quarantined
        if quarantined > max(QUARANTINE_PAGES, QUARANTINE_SHARE * self._pool.num_pages):
            self.retire(f"{quarantined} pages are quarantined")
        if self._pool.is_spent:
            self.retire("the page pool has nearly used up its generations")

    def _seal_off(self, mismatch: Mismatch) -> None:
        domains = [mismatch.chunk.seq.request.domain]
        other = self._pool.domains.name(tags.domain_slot(mismatch.found))
        for domain in (*domains, *([other] if other else [])):
            self._prefix.purge(domain)
        self._prefix.close()
        self.retire("a request was about to read a page of another domain")

    def retire(self, reason: str) -> None:
        """Ask to be replaced. The first reason counts."""
        if not self.retirement:
            self.retirement = reason
            log.error("engine_retires", reason=reason)

    def _log(self, step: int, mismatch: Mismatch) -> None:
        log.error(
            "kv_tag_mismatch",
            step=step,
            phase=mismatch.phase,
            kind=mismatch.kind,
            request=mismatch.chunk.seq.request.id,
            domain=mismatch.chunk.seq.request.domain,
            page=mismatch.page,
            row_slot=mismatch.chunk.seq.domain_slot,
            expected=_fields(mismatch.expected),
            found=_fields(mismatch.found),
            state=mismatch.state,
            refs=mismatch.refs,
            pins=mismatch.pins,
            history=self._history(mismatch.page),
        )

    def _facts(self, page: int) -> dict[str, object]:
        if page >= self._pool.num_pages:
            return {}
        return {
            "state": State(self._pool.states[page]).name,
            "domain": self._pool.domain_of(page) or "",
            "tag": _fields(int(self._pool.tags[page])),
            "history": self._history(page),
        }

    def _history(self, page: int) -> list[str]:
        events = self._pool.history(page)
        return [f"step {event.step}: {event.state.name} {_fields(event.tag)}" for event in events]


def _fields(tag: int) -> str:
    return f"{tags.domain_slot(tag)}:{tags.generation(tag)}"
