"""The embedded engine: add, abort, and a step that reads from top to bottom.

Told prompts as token ids and an opaque domain; never told text, HTTP or tenants.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from pathlib import Path

import structlog

from engines.api import (
    EngineFailed,
    EngineRetiring,
    EngineSpec,
    KvIntegrityAbort,
    Output,
    PageMap,
    Request,
    RequestRefused,
    Stats,
    Tokenizer,
)
from engines.embedded.backend import Runner, open_backend
from engines.embedded.batch import Batch, build
from engines.embedded.config import EngineConfig, ModelConfig
from engines.embedded.door import Door
from engines.embedded.figures import figures
from engines.embedded.flight import Flight, Landed, Runway
from engines.embedded.incidents import Incidents
from engines.embedded.kv import PageBytes
from engines.embedded.page_map import page_map
from engines.embedded.pages import PagePool
from engines.embedded.public import PublicPrompts
from engines.embedded.scheduler import Scheduler
from engines.embedded.scrub import Scrubber
from engines.embedded.seq import Chunk, Phase, Seq
from engines.embedded.settled import settled_options
from engines.embedded.tables import Tables
from engines.embedded.validate import fit_context, refuse_unfit
from engines.embedded.verify import Mismatch, Verifier
from engines.tokenizer import FolderTokenizer

log = structlog.get_logger()

TRANSFER_POLL_S = 0.001  # while a request waits for nothing but the end of a transfer


def create(spec: EngineSpec) -> EmbeddedEngine:
    """Load the model in folder `spec.path`. Raises UnsupportedError for what can't be served."""
    folder = Path(spec.path)
    config = settled_options(spec.options, folder)
    model = ModelConfig.from_folder(folder)
    backend = open_backend(folder, model, config)
    kv = backend.kv
    pool = PagePool(kv.num_pages, wipe=kv.zero)
    scope_of = backend.scopes(config) if config.prefix_cache else None
    tables = Tables(pool, config.page_size, scope_of, Scrubber(pool, kv))
    return EmbeddedEngine(FolderTokenizer(folder), model, config, tables, kv, backend.runner)


class EmbeddedEngine:
    """`engines.api.Engine` over a runner (tensors) and a scheduler (bookkeeping)."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        model: ModelConfig,
        config: EngineConfig,
        tables: Tables,
        kv: PageBytes,
        runner: Runner,
    ) -> None:
        self.tokenizer: Tokenizer = tokenizer
        self.max_context_tokens = fit_context(model, config, tables.pool.num_pages)
        self._public = PublicPrompts.declared(config.public_prompts, tokenizer, config.page_size)
        self._vocab_size = model.vocab_size
        self._page_size = config.page_size
        self._most_drafts = config.speculation
        self.pool = tables.pool
        self.tables = tables
        self.scheduler = Scheduler(
            tables, config.max_batch_tokens, config.max_running, model.eos_token_ids
        )
        self.verifier = Verifier(tables.pool, config.page_size, config.integrity)
        self.incidents = Incidents(tables, config.integrity)
        if tables.scrubber is not None:
            tables.scrubber.on_fault = self.incidents.found_corrupt
        self.kv = kv
        self.door = Door(tables, kv)
        self.runner = runner
        self.runway = Runway(runner, self.verifier, overlap=config.overlap)
        self._flights: deque[Flight] = deque()
        self.overlaps = config.overlap
        self._num_launched = 0
        self._seqs: dict[str, Seq] = {}
        self._counted: Counter[str] = Counter()  # by the names that Stats has
        self._failure: EngineFailed | None = None

    @property
    def retirement(self) -> str:
        """Why this engine should be drained and replaced; "" while it needn't."""
        return self.incidents.retirement

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestRefused if it can never run, or EngineRetiring."""
        if self.retirement:
            raise EngineRetiring(f"this engine is being replaced: {self.retirement}")
        if request.id in self._seqs:
            raise RequestRefused(f"request id {request.id!r} is in use")
        refuse_unfit(request, self._vocab_size, self.max_context_tokens)
        seq = Seq.of(request, self._public.num_pages(request.prompt), self._most_drafts)
        self._seqs[request.id] = seq
        self.scheduler.add(seq)

    def abort(self, request_id: str) -> None:
        """Forget a request and give up its pages; nothing follows. Unknown ids are fine."""
        if (seq := self._seqs.pop(request_id, None)) is not None:
            self.scheduler.abort(seq)
            self._count(aborted=1)

    def has_work(self) -> bool:
        """Whether a step would have something to compute, or to wait for."""
        return bool(self._seqs or self._flights)

    def step(self) -> list[Output]:
        """Run one batch. Raises EngineFailed, then and ever after, if the engine broke."""
        if self._failure is not None:
            raise self._failure
        try:
            return self._step()
        except EngineFailed as error:
            self._failure = error
            raise
        except Exception as error:
            self._failure = EngineFailed(f"the engine broke in a step: {error!r}")
            raise self._failure from error

    def _step(self) -> list[Output]:
        """Prepare and launch the next step while the last one runs; then land that one."""
        while self._may_launch() and self._launch():
            pass
        if not self._flights:
            time.sleep(TRANSFER_POLL_S)
        outputs = self._land(self._flights.popleft()) if self._flights else []
        self.tend()
        return outputs + self._give_up()

    def _give_up(self) -> list[Output]:
        """Whom quarantined pages leave no room, although they once fitted."""
        given_up, self.scheduler.given_up = self.scheduler.given_up, []
        for seq in given_up:
            del self._seqs[seq.request.id]
            self._count(integrity_aborts=1)
            self.incidents.retire("quarantined pages leave no room for a request that once fitted")
        return [Output(seq.request.id, finish=seq.finish, error=seq.error) for seq in given_up]

    def _may_launch(self) -> bool:
        """Whether to lay out a step now: the first one at once, the next unless drafts need it."""
        if not self._flights:
            return True
        return len(self._flights) < 1 + self.overlaps and not self.scheduler.should_wait()

    def _launch(self) -> bool:
        """Send the next step on its way. False if there's nothing to compute."""
        chunks = self.scheduler.schedule()
        if not chunks:
            return False
        self._num_launched += 1
        batch = build(chunks, self._page_size)
        self.pool.launch(self._num_launched, batch.touched())
        self._flights.append(self.runway.launch(self._num_launched, batch))
        return True

    def _land(self, flight: Flight) -> list[Output]:
        """Wait for a step. What fails a check is stopped before its token leaves."""
        landed = flight.land()
        self.pool.complete(flight.number)
        self._judge(flight.number, landed.mismatches)
        before = self.verifier.num_checked("after")
        self._judge(flight.number, self.verifier.after(landed.batch), landed.batch)
        num_checked = self.verifier.num_checked("after") - before
        self.verifier.assert_covered(landed.batch, landed.num_checked, num_checked)
        self._stop_broken(flight.number, landed)
        fresh = {
            chunk.seq: self.scheduler.commit(chunk, landed.tokens.get(chunk, ()))
            for chunk in landed.batch.chunks
        }
        return self._report(flight.batch.chunks, fresh)

    def _judge(self, step: int, mismatches: list[Mismatch], ran: Batch | None = None) -> None:
        """Stop the rows at fault, if any of them `ran` before that was seen or not."""
        # A row that was aborted or preempted meanwhile had given up its pages: no fault of theirs.
        live = [found for found in mismatches if found.chunk.is_live]
        for mismatch in live:
            self.incidents.record(step, mismatch)
        if self.verifier.mode != "enforce":
            return
        for page in self.incidents.suspects(live, ran):
            self.tables.prefix.condemn(page)
        for chunk in {found.chunk: None for found in live}:
            self._condemn(chunk.seq, "a page of it was not the one it had been given")

    def _stop_broken(self, step: int, landed: Landed) -> None:
        """A row that should have chosen a token and found no finite number."""
        for chunk in landed.batch.chunks:
            if chunk.samples and chunk not in landed.tokens and chunk.is_live:
                self.incidents.found_broken(step, chunk)
                self._condemn(chunk.seq, "what was computed from its pages is not finite")

    def _condemn(self, seq: Seq, reason: str) -> None:
        streamed, told = seq.has_answered, seq.num_cached if seq.is_counted else 0
        self.scheduler.condemn(seq, KvIntegrityAbort(f"this request was stopped: {reason}"))
        if seq.finish is None:
            seq.is_told = seq.is_told and not told  # nothing of it is cached, the second time
            self._count(integrity_retries=1, cached_tokens=-told)
        else:
            self._count(integrity_aborts=1, integrity_aborts_streamed=int(streamed))

    def _report(self, chunks: list[Chunk], fresh: dict[Seq, tuple[int, ...]]) -> list[Output]:
        """One output for each seq of the step that has news."""
        outputs = []
        for chunk in chunks:
            seq = chunk.seq
            told, cached = fresh.get(seq, ()), self._begun(seq)
            if self._seqs.get(seq.request.id) is not seq:
                continue  # aborted meanwhile, or ended by the step before
            if seq.finish is not None:
                del self._seqs[seq.request.id]
            if told or cached is not None or seq.finish is not None:
                outputs.append(Output(seq.request.id, told, seq.finish, cached, seq.error))
        self._count(steps=1, output_tokens=sum(map(len, fresh.values())))
        return outputs

    def _begun(self, seq: Seq) -> int | None:
        """How much of its prompt was cached, once; None if that has been told, or isn't known yet.

        One that has just failed a check or given way is told, and counted, when it comes back.
        """
        if seq.is_told or seq.phase is Phase.WAITING:
            return None
        prompt_tokens = 0 if seq.is_counted else seq.prompt_len
        self._count(prompt_tokens=prompt_tokens, cached_tokens=seq.num_cached)
        seq.is_counted = seq.is_told = True
        return seq.num_cached

    def tend(self) -> None:
        """See Engine: wipe what is given up, scrub a little, see whether the engine is fit."""
        self.pool.recycle()
        self.door.expire()
        if self.tables.scrubber is not None:
            for page in self.tables.scrubber.tend():
                self.tables.prefix.condemn(page)
        self.incidents.review()

    def stats(self) -> Stats:
        """Gauges of now and counters since the start."""
        return figures(self._counted, self.scheduler, self.verifier, self.incidents, self.tables)

    def pages(self) -> PageMap:
        """Where every page is."""
        return page_map(self.pool, self._page_size)

    def close(self) -> None:
        """Give the memory back. A step afterwards raises EngineFailed."""
        if self._failure is None:
            self._failure = EngineFailed("the engine is closed")
        self.runway.close()
        self.runner.close()

    def _count(self, **more: int) -> None:
        for name, number in more.items():
            self._counted[name] += number
