"""One engine reads a text, and tells its opinion of each next token, a few tokens at a time.

Through its own pages, tables and kernels, in chunks as a prompt is read while it serves; only the
scheduler is left out. Nothing else may run on the engine meanwhile.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

import numpy as np

from engines.api import EngineError, Request, Sampling
from engines.embedded.batch import build
from engines.embedded.engine import EmbeddedEngine
from engines.embedded.evaluation.metrics import Logits
from engines.embedded.seq import Phase, Seq

PART = 64  # tokens whose logits are held at once


def logits_of(
    engine: EmbeddedEngine, page_size: int, tokens: Sequence[int], part: int = PART
) -> Generator[Logits]:
    """Logits after each token, `part` tokens at a time: [at most part, vocab_size]."""
    seq = Seq.of(Request("read", "evaluation", tuple(tokens), Sampling(1)))
    if not engine.tables.admit(seq):
        raise EngineError(f"no room for the KV of {len(tokens)} tokens")
    assert seq.num_scheduled == 0, "an engine that reads has no prefix cache"
    try:
        while seq.num_scheduled < len(tokens):
            num_tokens = min(part, len(tokens) - seq.num_scheduled)
            engine.tables.grow(seq, seq.num_scheduled + num_tokens)
            chunk = seq.next_chunk(num_tokens)
            batch = build([chunk], page_size)
            yield engine.runner.logits(batch, np.arange(chunk.num_tokens))
            engine.tables.computed(chunk, chunk.context_len)
    finally:
        engine.tables.release(seq, Phase.ENDED)
        engine.tend()


def side_by_side(
    engines: Sequence[EmbeddedEngine], page_size: int, tokens: Sequence[int], part: int = PART
) -> Iterator[tuple[int, list[Logits]]]:
    """Where a part of the text begins, and what each engine makes of it."""
    streams = [logits_of(engine, page_size, tokens, part) for engine in engines]
    try:
        for number, parts in enumerate(zip(*streams, strict=True)):
            yield number * part, list(parts)
    finally:
        for stream in streams:
            stream.close()
