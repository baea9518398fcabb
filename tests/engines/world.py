"""The real engine over labelled memory, its steps split where anything may come between.

A step is launched, executed and landed by three calls; two are under way at most, as in the engine.
What happens in the middle of an execution happens at one of its named points. All choices are
numbers, so that whoever drives it decides and can repeat them.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, cast

import numpy as np
import xxhash
from numpy.typing import NDArray

from engines.api import FinishReason, Output, Request, Sampling
from engines.embedded.batch import Batch
from engines.embedded.config import EngineConfig, ModelConfig
from engines.embedded.door import ENDED, Load, LoadRefused, LoadState
from engines.embedded.engine import EmbeddedEngine
from engines.embedded.flight import Flight, Runway
from engines.embedded.pages import NULL_PAGE, PagePool, State
from engines.embedded.prefix import KeyScope
from engines.embedded.public import PublicPrompts
from engines.embedded.scrub import Scrubber
from engines.embedded.seq import Phase, Seq
from engines.embedded.tables import Tables
from tests.engines.books import check_books, tables_of
from tests.engines.invariants import SealedPages, check_abandoned, check_flights, check_tables
from tests.engines.oracle import EOS, Digests, LabelledMemory, LabellingModel, answer_of

Act = Callable[[], None]
POINTS = ("launched", "checked", "computed")
DOMAINS = ("a", "b", "c")
OUT_OF_STEPS = 2000  # far more than any world needs to come to rest


class SplitRunway(Runway):
    """Steps wait until they are told to run."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        super().__init__(engine.runner, engine.verifier, overlap=False)
        self.queue: deque[Flight] = deque()

    def launch(self, number: int, batch: Batch) -> Flight:
        self.queue.append(Flight(number, batch, SimpleQueue()))
        return self.queue[-1]

    def execute(self) -> None:
        flight = self.queue.popleft()
        flight.result.put(self._run(flight.batch))


class World:
    """`spoilable`: how many pages may be lost to rows whose tables were spoilt on purpose."""

    def __init__(
        self, num_pages: int = 24, page_size: int = 2, spoilable: int = 4, **options: Any
    ) -> None:
        self.prompts: dict[str, list[int]] = {}  # of loads
        self.memory = LabelledMemory(num_pages, page_size)
        self.model = LabellingModel(self.memory)
        self.pool = PagePool(num_pages, wipe=self.memory.zero)
        scrubber = Scrubber(self.pool, self.memory, clock=lambda: 0.0)
        self.tables = Tables(self.pool, page_size, self._scope_of, scrubber)
        self.scrubber = scrubber
        config = EngineConfig(page_size=page_size, **({"max_batch_tokens": 12} | options))
        self.engine = EmbeddedEngine(
            cast(Any, None), _model_config(), config, self.tables,
            cast(Any, self.memory), cast(Any, self.model),
        )  # fmt: skip
        self.engine._public = PublicPrompts([[0, 1, 1] * page_size], page_size)
        self.runway = self.engine.runway = SplitRunway(self.engine)
        self.seqs: dict[str, Seq] = {}
        self.answers: dict[str, list[int]] = {}
        self.told: dict[str, int] = {}  # id -> tokens that were cached
        self.ended: dict[str, FinishReason] = {}
        self.spoilt: set[str] = set()
        self.writers: list[Load] = []  # that may still write
        self._spoilable = spoilable
        self._sealed = SealedPages(self.pool, self.memory)

    def launch(self) -> None:
        if len(self.engine._flights) < 2:
            self.engine._launch()

    def execute(self, point: str = "", act: Act = lambda: None) -> None:
        """Run the next step; at the point, something else happens."""
        if self.runway.queue:
            self.runway.at = lambda reached, batch: act() if reached == point else None
            self.runway.execute()

    def land(self) -> None:
        flights = self.engine._flights
        if flights and not flights[0].result.empty():
            self._take(self.engine._land(flights.popleft()))

    def spoil(self, number: int) -> None:
        """The next step is laid out with a wrong tag in one row, which must be stopped."""
        if not self.runway.queue:
            return
        batch = self.runway.queue[0].batch
        row = number % len(batch.chunks)
        if batch.num_pages[row] <= self._spoilable:
            self._spoilable -= int(batch.num_pages[row])
            self.spoilt.add(batch.chunks[row].seq.request.id)
            batch.expected_tags[row, 0] += np.uint64(1)

    def submit(self, domain: str, prompt: Sequence[int], max_tokens: int) -> None:
        sampling = Sampling(max_tokens, temperature=0.0)
        request = Request(f"r{len(self.seqs)}", domain, tuple(prompt), sampling)
        self.engine.add(request)
        self.seqs[request.id] = self.engine._seqs[request.id]
        self.answers[request.id] = []

    def abort(self, number: int) -> None:
        if ids := list(self.engine._seqs):
            id = ids[number % len(ids)]
            self.engine.abort(id)
            self.ended[id] = FinishReason.ABORT
            self.pool.recycle()

    def preempt(self, number: int) -> None:
        if running := self.engine.scheduler.running:
            self.engine.scheduler._preempt(running[number % len(running)])
            self.pool.recycle()

    def evict(self, number: int) -> None:
        self.tables.prefix.evict_one()

    def purge(self, number: int) -> None:
        self.tables.prefix.purge(DOMAINS[number % len(DOMAINS)])

    def scrub(self, number: int) -> None:
        assert not self.scrubber.look(self.pool.num_pages), "a sealed page has changed"
        counted = self.scrubber.counted
        assert counted.mismatches + counted.residues + counted.canaries == 0

    def tend(self, number: int = 0) -> None:
        self.engine.tend()

    def change_weights(self) -> None:
        """Once nothing runs: what is cached was computed by others."""
        for id in list(self.engine._seqs):
            self.engine.abort(id)
            self.ended[id] = FinishReason.ABORT
        self._come_to_rest()
        self.model.revision += 1

    def open(self, domain: str, prompt: Sequence[int]) -> None:
        if len(self._loads(LoadState.OPEN, LoadState.ABANDONED)) < 2:
            with suppress(LoadRefused):
                load = self.engine.door.open(domain, list(prompt))
                self.prompts[load.id] = list(prompt)
                self.writers.append(load)

    def write(self, number: int) -> None:
        """Right bytes into an open load; anything into one that was given up, or is lost."""
        for load in self.writers[number % 2 :][:1]:
            for page, content in zip(load.pages, self._owed(load), strict=True):
                self.memory.labels[page.id] = content
                self.memory.labels[page.id, :, 2] += load.state is not LoadState.OPEN

    def commit(self, number: int) -> None:
        for load in self._loads(LoadState.OPEN)[:1]:
            self.writers.remove(load)
            sums = [xxhash.xxh3_64_intdigest(page.tobytes()) for page in self._owed(load)]
            try:
                self.engine.door.commit(load.id, load.incarnation, sums)
            except LoadRefused:
                assert load.state is LoadState.DRAINED, "what was never written is refused"

    def abandon(self, number: int) -> None:
        for load in self._loads(LoadState.OPEN)[number % 2 :][:1]:
            self.engine.door.abandon(load.id, load.incarnation)

    def drained(self, number: int) -> None:
        for load in self._loads(LoadState.OPEN, LoadState.ABANDONED)[number % 2 :][:1]:
            self.writers.remove(load)
            self.engine.door.drained(load.id, load.incarnation)

    def lose(self, number: int) -> None:
        """A writer is never heard of again, and may still write."""
        for load in self._loads(LoadState.OPEN, LoadState.ABANDONED)[:1]:
            if len(load.pages) <= self._spoilable:
                self._spoilable -= len(load.pages)
                self.engine.door.quarantine(load.id, load.incarnation)

    def check(self) -> None:
        """At any time."""
        check_books(self.pool, tables_of(self.engine))
        check_flights(self.engine, self.spoilt)
        check_abandoned(self.engine)
        self._sealed.check()
        check_tables(self.engine, self.model)
        assert self.spoilt or not self.engine.incidents.mismatches, "nothing was wrong"
        free = self.pool.states == State.FREE
        assert not self.memory.labels[:-1][free].any(), "a free page isn't wiped"
        assert self.memory.is_zero(NULL_PAGE)

    def finish(self) -> None:
        """Everything promised comes about once steps land and transfers drain."""
        while self._loads(LoadState.OPEN, LoadState.ABANDONED):
            self.drained(0)
        self._come_to_rest()
        assert set(self.ended) == set(self.seqs), "every request ends"
        assert self.pool.num_in_transfer == 0
        assert not (self.pool.states == State.RETIRING).any(), "what retires becomes free"
        for id, seq in self.seqs.items():
            assert seq.phase is Phase.ENDED
            if self.ended[id] is FinishReason.ERROR:
                assert id in self.spoilt
            elif self.ended[id] is not FinishReason.ABORT:
                assert id in self.told, "what was cached is told"
        self.check()

    def _come_to_rest(self) -> None:
        for _ in range(OUT_OF_STEPS):
            if not self.engine.has_work():
                self.tend()
                return
            self.launch()
            if len(self.engine._flights) == 2 or not self.engine.scheduler.running:
                self.execute()
                self.land()
            self.execute()
            self.land()
            self.tend()
        raise AssertionError("the engine never came to rest")

    def _take(self, outputs: list[Output]) -> None:
        for output in outputs:
            id, seq = output.request_id, self.seqs[output.request_id]
            assert id not in self.ended, "nothing follows an end"
            self.answers[id] += output.token_ids
            if output.cached_tokens is not None:
                assert id not in self.told, "what was cached is told once"
                self.told[id] = output.cached_tokens
            if output.finish is not None:
                self.ended[id] = output.finish
            self._check_answer(seq)

    def _check_answer(self, seq: Seq) -> None:
        id, request = seq.request.id, seq.request
        owed = answer_of(request.prompt, request.sampling.max_tokens, self.model.revision)
        told = self.answers[id]
        assert told == owed[: len(told)]
        if self.ended.get(id) in (FinishReason.STOP, FinishReason.LENGTH):
            assert told == owed
            self.model.forget(seq)

    def _loads(self, *states: LoadState) -> list[Load]:
        loads = self.engine.door._loads.values()
        return [load for load in loads if load.state in states and load.state not in ENDED]

    def _owed(self, load: Load) -> list[NDArray[np.int64]]:
        """What the pages of a load must hold."""
        digests = Digests(self.model.revision)
        digests.extend(self.prompts[load.id])
        pages = range(load.first_page, load.first_page + len(load.pages))
        return [self.memory.page_of(load.domain, digests, index) for index in pages]

    def _scope_of(self, domain: str) -> KeyScope:
        return KeyScope(domain, str(self.model.revision), "", "", "", "", "", 0)


# What may happen between two steps or in the middle of one.
DEEDS: list[Callable[[World, int], None]] = [
    World.abort, World.preempt, World.evict, World.purge, World.scrub, World.tend,
    World.write, World.commit, World.abandon, World.drained, World.lose,
    lambda world, number: world.submit(*random_request(number, 9, 6)),
    lambda world, number: world.open(*random_request(number, 9, 6)[:2]),
]  # fmt: skip


def random_request(number: int, longest: int, max_tokens: int) -> tuple[str, list[int], int]:
    """Few different beginnings: most prompts share a prefix with an earlier one."""
    chance = random.Random(number)
    length = chance.randint(1, longest)
    start = [0, 1, 1] * longest if chance.random() < 0.5 else [chance.randint(0, 1)] * longest
    prompt = start[: chance.randint(0, length)]
    prompt += [chance.randint(0, 1) for _ in range(length - len(prompt))]
    return chance.choice(DOMAINS), prompt, chance.randint(1, max_tokens)


def _model_config() -> ModelConfig:
    return ModelConfig(
        vocab_size=4, hidden_size=1, intermediate_size=1, num_layers=1, num_heads=1,
        num_kv_heads=1, head_dim=1, rms_norm_eps=1.0, rope_theta=1.0, max_context=4096,
        tied_embeddings=True, eos_token_ids=frozenset([EOS]),
    )  # fmt: skip
