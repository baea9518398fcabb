"""The embedded engine: add, abort, and a step that reads from top to bottom.

Told prompts as token ids and an opaque domain; never told text, HTTP or tenants.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from engines.api import (
    EngineFailed,
    EngineSpec,
    KvIntegrityAbort,
    Output,
    Request,
    RequestRefused,
    Stats,
    Tokenizer,
)
from engines.embedded.batch import Batch, build
from engines.embedded.config import EngineConfig, ModelConfig, UnsupportedError, max_context
from engines.embedded.kv import TORCH_DTYPES, KvCache
from engines.embedded.loader import kv_scales, load, revision
from engines.embedded.models.llama import Llama
from engines.embedded.pages import PagePool
from engines.embedded.prefix import KeyScope
from engines.embedded.runner import Runner
from engines.embedded.scheduler import Plan, Scheduler
from engines.embedded.seq import Phase, Seq
from engines.embedded.tables import Tables
from engines.embedded.validate import refuse_unfit
from engines.embedded.verify import Verifier
from engines.tokenizer import FolderTokenizer


def create(spec: EngineSpec) -> EmbeddedEngine:
    """Load the model in folder `spec.path`. Raises UnsupportedError for what can't be served."""
    folder = Path(spec.path)
    config = EngineConfig.from_options(spec.options)
    model = ModelConfig.from_folder(folder)
    torch.set_num_threads(config.threads)
    weights = load(folder, model, TORCH_DTYPES[config.dtype])
    kv = KvCache(model, config, kv_scales(folder, model, config))
    runner = Runner(Llama(model, weights), kv, config.page_size)
    tables = Tables(
        PagePool(kv.num_pages),
        config.page_size,
        _scopes(config, revision(folder)) if config.prefix_cache else None,
    )
    return EmbeddedEngine(FolderTokenizer(folder), model, config, tables, runner)


class EmbeddedEngine:
    """`engines.api.Engine` over a runner (tensors) and a scheduler (bookkeeping)."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        model: ModelConfig,
        config: EngineConfig,
        tables: Tables,
        runner: Runner,
    ) -> None:
        self.tokenizer: Tokenizer = tokenizer
        self.max_context_tokens = _max_context(model, config, tables.pool)
        self._vocab_size = model.vocab_size
        self._page_size = config.page_size
        self.pool = tables.pool
        self.scheduler = Scheduler(
            tables, config.max_batch_tokens, config.max_running, model.eos_token_ids
        )
        self.verifier = Verifier(tables.pool, config.page_size, config.integrity)
        self.runner = runner
        self._seqs: dict[str, Seq] = {}
        self._counted = Stats()
        self._failure: EngineFailed | None = None

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestRefused if it can never run."""
        if request.id in self._seqs:
            raise RequestRefused(f"request id {request.id!r} is in use")
        refuse_unfit(request, self._vocab_size, self.max_context_tokens)
        seq = Seq.of(request)
        self._seqs[request.id] = seq
        self.scheduler.add(seq)

    def abort(self, request_id: str) -> None:
        """Forget a request and free its pages; nothing follows. Unknown ids are fine."""
        if (seq := self._seqs.pop(request_id, None)) is not None:
            self.scheduler.abort(seq)
            self._count(aborted=1)

    def has_work(self) -> bool:
        """Whether a step would have something to compute."""
        return bool(self._seqs)

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
        plan = self.scheduler.schedule()
        batch = self._build_verified(plan)
        tokens = self.runner.run(batch) if batch.chunks else {}
        for row in self.verifier.after(batch):
            tokens.pop(row, None)
            self._condemn(batch.chunks[row].seq)
        for row, chunk in enumerate(batch.chunks):
            if chunk.seq.phase is Phase.RUNNING:
                self.scheduler.commit(chunk, tokens.get(row))
        return self._report(plan, {batch.chunks[row].seq: tokens[row] for row in tokens})

    def _build_verified(self, plan: Plan) -> Batch:
        """The batch of the rows that pass the check. What fails it is ended and left out."""
        chunks = plan.chunks
        while True:
            batch = build(chunks, self._page_size)
            faulty = self.verifier.before(batch)
            if not faulty:
                return batch
            for row in faulty:
                self._condemn(batch.chunks[row].seq)
            # Built anew, so checked anew: the check must have seen the tables that are read.
            chunks = [chunk for chunk in chunks if chunk.seq.phase is Phase.RUNNING]

    def _condemn(self, seq: Seq) -> None:
        error = KvIntegrityAbort("a page of this request was not the one it had been given")
        self.scheduler.condemn(seq, error)
        self._count(integrity_aborts=1)

    def _report(self, plan: Plan, tokens: dict[Seq, int]) -> list[Output]:
        """One output for each seq of the step that has news."""
        self._count(
            steps=1,
            prompt_tokens=sum(seq.prompt_len for seq in plan.admitted),
            cached_tokens=sum(seq.num_cached for seq in plan.admitted),
            output_tokens=len(tokens),
        )
        outputs = []
        for seq in (chunk.seq for chunk in plan.chunks):
            if seq.finish is not None:
                del self._seqs[seq.request.id]
            output = Output(
                request_id=seq.request.id,
                token_ids=(tokens[seq],) if seq in tokens else (),
                finish=seq.finish,
                cached_tokens=seq.num_cached if seq in plan.admitted else None,
                error=seq.error,
            )
            if output != Output(seq.request.id):
                outputs.append(output)
        return outputs

    def stats(self) -> Stats:
        """Gauges of now and counters since the start."""
        return replace(
            self._counted,
            waiting=len(self.scheduler.waiting),
            running=len(self.scheduler.running),
            pages=self.pool.count(),
            tag_pages_checked=self.verifier.pages_checked,
            tag_mismatches=self.verifier.mismatches,
        )

    def close(self) -> None:
        """Give the memory back. A step afterwards raises EngineFailed."""
        if self._failure is None:
            self._failure = EngineFailed("the engine is closed")
        self.runner.close()

    def _count(self, **more: int) -> None:
        sums = {name: getattr(self._counted, name) + number for name, number in more.items()}
        self._counted = replace(self._counted, **sums)


def _max_context(model: ModelConfig, config: EngineConfig, pool: PagePool) -> int:
    if config.max_context > model.max_context:
        raise UnsupportedError(f"option 'max_context' exceeds the model's {model.max_context}")
    return max_context(model, config, pool.num_pages)


def _scopes(config: EngineConfig, model_revision: str) -> Callable[[str], KeyScope]:
    def scope_of(domain: str) -> KeyScope:
        return KeyScope(
            domain=domain,
            model_revision=model_revision,
            adapter="",
            kv_dtype=config.kv_dtype,
            kv_scales="",
            layout="layer/kv/head/page/offset/dim",
            page_size=config.page_size,
        )

    return scope_of
