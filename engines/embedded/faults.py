"""Faults to plant in a live engine, one of each kind that the tagged cache must survive.

Each does what a bug or broken memory would do, past the asserts that would stop our own code, and
names the layer that must notice. For tests and for `bulkhead fault inject` on a development
machine; called between two steps, from the engine's thread. Numbers F1.. are those of
docs/integrity.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from engines.api import Engine, FaultKind
from engines.embedded import tags
from engines.embedded.batch import Batch
from engines.embedded.engine import EmbeddedEngine
from engines.embedded.pages import NULL_PAGE, State
from engines.embedded.prefix import KeyScope
from engines.embedded.seq import Chunk, Page
from engines.embedded.victims import (
    FaultImpossible,
    has_two_tenants,
    need,
    need_two_tenants,
    own_page,
    rows_apart,
    victim,
)


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault. `plant` returns what it did; `layer` is who must notice."""

    number: str
    layer: str
    plant: Callable[[EmbeddedEngine], str]


def free_held_page(engine: EmbeddedEngine) -> str:
    """The allocator gives up a page that a running request still reads."""
    seq = victim(engine)
    page = own_page(engine, seq)
    engine.tables.prefix.forget(page)
    engine.pool.refs[page] = 1
    engine.pool.release(page)
    return f"page {page} of {seq.request.id} was freed"


def bump_tag_in_step(engine: EmbeddedEngine) -> str:
    """A page changes hands between the check and the end of the step."""

    def bump(batch: Batch) -> None:
        seq = batch.chunks[-1].seq
        with engine.pool.lock:
            engine.pool._retag(
                int(batch.block_tables[-1, batch.num_pages[-1] - 1]), seq.domain_slot
            )

    _once(engine, "checked", bump)
    return "the next step's last row loses its last page while it runs"


def swap_tables(engine: EmbeddedEngine) -> str:
    """Rows of two tenants, in the table that attention reads, trade places."""
    need_two_tenants(engine)

    def swap(batch: Batch) -> None:
        i, j = rows_apart(batch)
        batch.block_tables[[i, j]] = batch.block_tables[[j, i]]

    _once(engine, "launched", swap, has_two_tenants)
    return "in the next step with rows of two tenants, one of each read each other's pages"


def swap_tables_and_tags(engine: EmbeddedEngine) -> str:
    """The same, with the recorded tags: only the rows' domains tell."""
    need_two_tenants(engine)

    def swap(batch: Batch) -> None:
        i, j = rows_apart(batch)
        for array in (batch.block_tables, batch.expected_tags):
            array[[i, j]] = array[[j, i]]

    _once(engine, "launched", swap, has_two_tenants)
    return "in the next step with rows of two tenants, one of each read the other's, tags and all"


def stale_staging(engine: EmbeddedEngine) -> str:
    """A step runs on the table of an earlier one: its buffer was reused too soon."""
    seq, other = need(engine, 2)[:2]
    stale = other.block_table[-1]  # the first may be a prefix that both share

    def overwrite(batch: Batch) -> None:
        for row, chunk in enumerate(batch.chunks):
            if chunk.seq is seq:
                batch.block_tables[row, 0] = stale

    _once(engine, "launched", overwrite)
    return f"a row of {seq.request.id} names page {stale} of {other.request.id}"


def double_free(engine: EmbeddedEngine) -> str:
    """A page stands twice in the free list, so that two owners would get it."""
    if engine.pool.num_free == 0:
        raise FaultImpossible("no page is free")
    page = engine.pool._free[-1]
    engine.pool._free.append(page)
    return f"page {page} is free twice"


def evict_held_page(engine: EmbeddedEngine) -> str:
    """A cached page is evicted although requests read it."""
    seq = victim(engine)
    index = seq.num_sealed_pages - 1
    if index < 0:
        raise FaultImpossible(f"{seq.request.id} has no sealed page yet")
    page = seq.block_table[index]
    engine.tables.prefix.forget(page)
    engine.pool.refs[page] = 0
    engine.pool.states[page] = State.CACHED
    engine.pool.evict(page)
    return f"page {page}, which {seq.request.id} reads, was evicted"


def drop_domain_from_key(engine: EmbeddedEngine) -> str:
    """The index forgets whose pages it holds, from now on."""
    _rescope(engine, domain="everybody")
    return "content keys name no domain any more"


def stale_index_entry(engine: EmbeddedEngine) -> str:
    """A cached page is freed, and its entry stays."""
    prefix = engine.tables.prefix
    page = next(prefix._evictable.candidates(), None)
    if page is None:
        raise FaultImpossible("no page is cached")
    prefix._evictable.discard(page)
    engine.pool.evict(page)
    return f"cached page {page} was freed, its entry stays"


def seal_too_soon(engine: EmbeddedEngine) -> str:
    """A page is sealed while its tokens are still to be computed."""
    seq = victim(engine)
    engine.pool.seal(seq.block_table[-1])
    return f"page {seq.block_table[-1]} of {seq.request.id} was sealed before it was full"


def seal_rejected_draft(engine: EmbeddedEngine) -> str:
    """A page is cached under its request's tokens, whose last KV is that of a rejected draft."""
    if not need(engine, 1)[0].drafter:
        raise FaultImpossible("the newest request proposes no drafts: see the option `speculation`")
    tables, computed = engine.tables, engine.tables.computed

    def computed_too_much(chunk: Chunk, length: int) -> None:
        computed(chunk, length)
        index, seq = length // tables.page_size, chunk.seq
        if chunk.context_len > length and (index + 1) * tables.page_size == len(seq.tokens):
            tables.computed = computed  # type: ignore[method-assign]
            tables.seal(seq, index, Page(seq.block_table[index], seq.tags[index]))

    tables.computed = computed_too_much  # type: ignore[method-assign]
    return "the next page that would end in a rejected draft is sealed, and cached, too soon"


def negative_slot(engine: EmbeddedEngine) -> str:
    """A padded row's slot, -1, is about to be used as an index."""
    victim(engine)

    def pad(batch: Batch) -> None:
        batch.slot_mapping[batch.token_rows == 0] = -1

    _once(engine, "launched", pad)
    return "the next step's first row writes to slot -1"


def null_page_written(engine: EmbeddedEngine) -> str:
    """Somebody wrote NaN to the null page."""
    engine.kv.bytes_of(NULL_PAGE)[:] = 0xFF
    return "the null page is all ones"


def share_active_page(engine: EmbeddedEngine) -> str:
    """A page that is still written gets a second holder: no copy on write."""
    seq = victim(engine)
    engine.pool.refs[seq.block_table[-1]] += 1
    return f"page {seq.block_table[-1]}, which {seq.request.id} writes, is shared"


def flip_bit(engine: EmbeddedEngine) -> str:
    """One bit of a sealed page changes in memory."""
    sealed = np.flatnonzero(np.isin(engine.pool.states, (State.SEALED, State.CACHED)))
    if len(sealed) == 0:
        raise FaultImpossible("no page is sealed")
    page = int(sealed[-1])
    engine.kv.bytes_of(page)[-1] ^= 0x10
    return f"a bit of sealed page {page} was flipped"


def skip_wiping(engine: EmbeddedEngine) -> str:
    """Freed pages keep their bytes, from now on."""
    engine.pool.wipe = lambda pages: None
    return "pages are no longer wiped"


def spend_generations(engine: EmbeddedEngine) -> str:
    """The counter of generations is nearly at its end."""
    engine.pool._generation = tags.GENERATION_LIMIT
    return "the pool's generations are nearly used up"


def change_weights(engine: EmbeddedEngine) -> str:
    """The weights were replaced under the same name: nothing cached fits them."""
    _rescope(engine, model_revision="another")
    return "the model's revision is another one"


def disable_check(engine: EmbeddedEngine) -> str:
    """The check is switched off behind the engine's back."""
    engine.verifier.before = lambda batch: []  # type: ignore[method-assign]
    return "the check before the forward pass does nothing"


# With `options.overlap` a step may be on its way already, past its first check.
BETWEEN_STEPS = "check before or after"
FAULTS = {
    "free-held-page": Fault("F1", BETWEEN_STEPS, free_held_page),
    "bump-tag-in-step": Fault("F2", "check after", bump_tag_in_step),
    "swap-tables": Fault("F3", "check before", swap_tables),
    "swap-tables-and-tags": Fault("F4", "row's domain", swap_tables_and_tags),
    "stale-staging": Fault("F5", "check before", stale_staging),
    "double-free": Fault("F6", "page moves", double_free),
    "evict-held-page": Fault("F7", BETWEEN_STEPS, evict_held_page),
    "drop-domain-from-key": Fault("F8", "row's domain", drop_domain_from_key),
    "stale-index-entry": Fault("F10", "entry's tag", stale_index_entry),
    "seal-too-soon": Fault("F20", "write guard", seal_too_soon),
    "seal-rejected-draft": Fault("F23", "write guard", seal_rejected_draft),
    "negative-slot": Fault("F21", "write guard", negative_slot),
    "null-page-written": Fault("F21", "scrubbing", null_page_written),
    "share-active-page": Fault("F22", "write guard", share_active_page),
    "flip-bit": Fault("F24", "checksum", flip_bit),
    "skip-wiping": Fault("F25", "scrubbing", skip_wiping),
    "spend-generations": Fault("F26", "retirement", spend_generations),
    "change-weights": Fault("F27", "content key", change_weights),
    "disable-check": Fault("F29", "coverage", disable_check),
}


def kinds() -> list[FaultKind]:
    """All there are, in words."""
    return [
        FaultKind(kind, fault.number, fault.layer, str(fault.plant.__doc__).splitlines()[0])
        for kind, fault in FAULTS.items()
    ]


def plant(engine: Engine, kind: str) -> str:
    """Plant a fault of this kind, and say what was done. Raises FaultImpossible."""
    if not isinstance(engine, EmbeddedEngine) or kind not in FAULTS:
        raise FaultImpossible(f"unknown fault {kind!r}; known: {', '.join(FAULTS)}")
    return FAULTS[kind].plant(engine)


def _has_rows(batch: Batch) -> bool:
    return bool(batch.chunks)


def _once(
    engine: EmbeddedEngine,
    point: str,
    act: Callable[[Batch], None],
    fits: Callable[[Batch], bool] = _has_rows,
) -> None:
    """At this point of the next step that fits, and then never again."""
    before = engine.runway.at

    def at(reached: str, batch: Batch) -> None:
        before(reached, batch)
        if reached == point and fits(batch):
            engine.runway.at = before
            act(batch)

    engine.runway.at = at


def _rescope(engine: EmbeddedEngine, **changes: Any) -> None:
    scope_of = engine.tables._scope_of
    if scope_of is None:
        raise FaultImpossible("prefixes aren't cached here")

    def changed(domain: str) -> KeyScope:
        return replace(scope_of(domain), **changes)

    engine.tables._scope_of = changed
