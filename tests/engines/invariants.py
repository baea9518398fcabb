"""What must hold at any time of an engine over labelled memory, beside its books."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from engines.embedded.door import LoadState
from engines.embedded.engine import EmbeddedEngine
from engines.embedded.pages import PagePool, State
from tests.engines.oracle import LabelledMemory, LabellingModel


def check_flights(engine: EmbeddedEngine, spoilt: Collection[str]) -> None:
    """What a step on its way may touch is not free, not another's, and not being filled."""
    for flight in engine._flights:
        batch = flight.batch
        read = np.arange(batch.block_tables.shape[1]) < batch.num_pages[:, None]
        pages = np.concatenate([batch.block_tables[read], batch.copy_sources])
        tags = np.concatenate([batch.expected_tags[read], batch.copy_tags])
        states = engine.pool.states[pages]
        given_up = np.isin(states, (State.FREE, State.ZEROING, State.LOADING))
        assert not given_up.any(), "a step may touch a page given up"
        kept = ~np.isin(states, (State.RETIRING, State.QUARANTINED))
        if not any(chunk.seq.request.id in spoilt for chunk in batch.chunks):
            assert (engine.pool.tags[pages] == tags)[kept].all(), "a page has another owner"


def check_abandoned(engine: EmbeddedEngine) -> None:
    """A writer that hasn't said that it has ended may still write."""
    for load in engine.door._loads.values():
        if load.state is LoadState.ABANDONED:
            states = engine.pool.states[[page.id for page in load.pages]]
            assert (states == State.RETIRING).all(), "a page that may be written was reused"


def check_tables(engine: EmbeddedEngine, model: LabellingModel) -> None:
    """Every table holds its own pages, and in them what was computed."""
    labels, size = model.memory.labels, model.memory.page_size
    for seq in engine.scheduler.running:
        assert all(engine.pool.holds(page) for page in seq.pages())
        # The rest of a page that is copied is there from the seq's first step on.
        length = seq.num_shared_pages * size if seq.copied is not None else seq.num_computed
        found = labels[seq.block_table].reshape(-1, labels.shape[-1])[:length]
        assert (found[:, 0] == model.domains_of(seq, length)).all()
        assert (found[:, 2] == model.digests_of(seq, seq.tokens[:length])).all()


class SealedPages:
    """Remembers what each page held when it was first seen sealed under its tag."""

    def __init__(self, pool: PagePool, memory: LabelledMemory) -> None:
        self._pool, self._memory = pool, memory
        self._tags = np.zeros(pool.num_pages, np.uint64)
        self._labels = np.zeros_like(memory.labels[: pool.num_pages])

    def check(self) -> None:
        """The same bytes as long as it has the same tag."""
        sealed = np.isin(self._pool.states, (State.SEALED, State.CACHED))
        known = sealed & (self._tags == self._pool.tags)
        labels = self._memory.labels[: self._pool.num_pages]
        assert (labels[known] == self._labels[known]).all(), "a sealed page was written"
        self._labels[sealed] = labels[sealed]
        self._tags[sealed] = self._pool.tags[sealed]
