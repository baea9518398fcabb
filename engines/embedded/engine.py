"""The embedded engine: add, abort, and a step that reads from top to bottom.

Told prompts as token ids and an opaque domain; never told text, HTTP or tenants.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch

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
from engines.embedded.batch import build
from engines.embedded.config import EngineConfig, ModelConfig, UnsupportedError, max_context
from engines.embedded.door import Door
from engines.embedded.flight import Flight, Runway
from engines.embedded.incidents import Incidents
from engines.embedded.kv import LAYOUT, TORCH_DTYPES, KvCache
from engines.embedded.loader import kv_scales, load, revision
from engines.embedded.models.llama import Llama
from engines.embedded.page_map import page_map
from engines.embedded.pages import PagePool
from engines.embedded.prefix import KeyScope
from engines.embedded.public import PublicPrompts
from engines.embedded.runner import Runner
from engines.embedded.scheduler import Scheduler
from engines.embedded.scrub import Scrubber
from engines.embedded.seq import Chunk, Phase, Seq
from engines.embedded.tables import Tables
from engines.embedded.validate import refuse_unfit
from engines.embedded.verify import Mismatch, Verifier
from engines.tokenizer import FolderTokenizer

TRANSFER_POLL_S = 0.001  # while a request waits for nothing but the end of a transfer


def create(spec: EngineSpec) -> EmbeddedEngine:
    """Load the model in folder `spec.path`. Raises UnsupportedError for what can't be served."""
    folder = Path(spec.path)
    config = EngineConfig.from_options(spec.options)
    model = ModelConfig.from_folder(folder)
    torch.set_num_threads(config.threads)
    weights = load(folder, model, TORCH_DTYPES[config.dtype])
    kv = KvCache(model, config, kv_scales(folder, model, config))
    runner = Runner(Llama(model, weights), kv, config.page_size)
    pool = PagePool(kv.num_pages, wipe=lambda pages: kv.zero(torch.tensor(pages)))
    tables = Tables(
        pool,
        config.page_size,
        _scopes(config, revision(folder), kv.scales_digest) if config.prefix_cache else None,
        Scrubber(pool, kv),
    )
    return EmbeddedEngine(FolderTokenizer(folder), model, config, tables, kv, runner)


class EmbeddedEngine:
    """`engines.api.Engine` over a runner (tensors) and a scheduler (bookkeeping)."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        model: ModelConfig,
        config: EngineConfig,
        tables: Tables,
        kv: KvCache,
        runner: Runner,
    ) -> None:
        self.tokenizer: Tokenizer = tokenizer
        self.max_context_tokens = _max_context(model, config, tables.pool)
        self._public = PublicPrompts.declared(config.public_prompts, tokenizer, config.page_size)
        self._vocab_size = model.vocab_size
        self._page_size = config.page_size
        self.pool = tables.pool
        self.tables = tables
        self.scheduler = Scheduler(
            tables, config.max_batch_tokens, config.max_running, model.eos_token_ids
        )
        self.verifier = Verifier(tables.pool, config.page_size, config.integrity)
        self.incidents = Incidents(tables.pool, tables.prefix, config.integrity)
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
        self._counted = Stats()
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
        seq = Seq.of(request, self._public.num_pages(request.prompt))
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
        while len(self._flights) < 1 + self.overlaps and self._launch():
            pass
        if not self._flights:
            time.sleep(TRANSFER_POLL_S)
        outputs = self._land(self._flights.popleft()) if self._flights else []
        self.tend()
        return outputs

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
        self._judge(flight.number, self.verifier.after(landed.batch))
        num_checked = self.verifier.num_checked("after") - before
        self.verifier.assert_covered(landed.batch, landed.num_checked, num_checked)
        fresh = {chunk.seq: token for chunk, token in landed.tokens.items() if chunk.is_live}
        for chunk in landed.batch.chunks:
            self.scheduler.commit(chunk, fresh.get(chunk.seq))
        return self._report(flight.batch.chunks, fresh)

    def _judge(self, step: int, mismatches: list[Mismatch]) -> None:
        # A row that was aborted or preempted meanwhile had given up its pages: no fault of theirs.
        for mismatch in [found for found in mismatches if found.chunk.is_live]:
            self.incidents.record(step, mismatch)
        if self.verifier.mode == "enforce":
            for chunk in {found.chunk: None for found in mismatches}:
                if chunk.is_live:
                    self._condemn(chunk.seq)

    def _condemn(self, seq: Seq) -> None:
        streamed = seq.has_answered
        self.scheduler.condemn(
            seq, KvIntegrityAbort("a page of this request was not the one it had been given")
        )
        if seq.finish is None:
            self._count(integrity_retries=1)
        else:
            self._count(integrity_aborts=1, integrity_aborts_streamed=int(streamed))

    def _report(self, chunks: list[Chunk], fresh: dict[Seq, int]) -> list[Output]:
        """One output for each seq of the step that has news."""
        seqs = [chunk.seq for chunk in chunks]
        # One that has just failed a check or given way is told, and counted, when it comes back.
        first = [seq for seq in seqs if not seq.is_counted and seq.phase is not Phase.WAITING]
        for seq in first:
            seq.is_counted = True
        self._count(
            steps=1,
            prompt_tokens=sum(seq.prompt_len for seq in first),
            cached_tokens=sum(seq.num_cached for seq in first),
            output_tokens=len(fresh),
        )
        outputs = []
        for seq in seqs:
            if self._seqs.get(seq.request.id) is not seq:
                continue  # aborted meanwhile, or ended by the step before
            if seq.finish is not None:
                del self._seqs[seq.request.id]
            output = Output(
                request_id=seq.request.id,
                token_ids=(fresh[seq],) if seq in fresh else (),
                finish=seq.finish,
                cached_tokens=seq.num_cached if seq in first else None,
                error=seq.error,
            )
            if output != Output(seq.request.id):
                outputs.append(output)
        return outputs

    def tend(self) -> None:
        """See Engine: wipe what is given up, scrub a little, see whether the engine is fit."""
        self.pool.recycle()
        if self.tables.scrubber is not None:
            for page in self.tables.scrubber.tend():
                self.tables.prefix.condemn(page)
        self.incidents.review()

    def stats(self) -> Stats:
        """Gauges of now and counters since the start."""
        checked = self.verifier.by_phase.values()
        scrubber = self.tables.scrubber
        return replace(
            self._counted,
            waiting=len(self.scheduler.waiting),
            running=len(self.scheduler.running),
            preempted=self.scheduler.num_preempted,
            pages=self.pool.count(),
            tag_pages_checked=self.verifier.pages_checked,
            tag_check_s=sum(phase.seconds for phase in checked),
            tag_mismatches=sum(self.incidents.mismatches.values()),
            mismatches={"/".join(key): n for key, n in self.incidents.mismatches.items()},
            scrubbed=asdict(scrubber.counted) if scrubber else {},
            limbo_age_s=self.pool.limbo_age_s,
            retirement=self.retirement,
        )

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
        sums = {name: getattr(self._counted, name) + number for name, number in more.items()}
        self._counted = replace(self._counted, **sums)


def _max_context(model: ModelConfig, config: EngineConfig, pool: PagePool) -> int:
    if config.max_context > model.max_context:
        raise UnsupportedError(f"option 'max_context' exceeds the model's {model.max_context}")
    return max_context(model, config, pool.num_pages)


def _scopes(config: EngineConfig, model_revision: str, kv_scales: str) -> Callable[[str], KeyScope]:
    def scope_of(domain: str) -> KeyScope:
        return KeyScope(
            domain=domain,
            model_revision=model_revision,
            adapter="",
            kv_dtype=config.kv_dtype,
            dtype=config.dtype,
            kv_scales=kv_scales,
            layout=LAYOUT,
            page_size=config.page_size,
        )

    return scope_of
