"""One model over several kinds of KV pages, and what it makes of texts over each of them.

The weights are shared; each kind has a pool of its own. Texts go through pages as in the engine: in
chunks of its step, K and V read back from where they were stored.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from engines.embedded.checkpoint import Checkpoint
from engines.embedded.config import EngineConfig, ModelConfig, page_bytes
from engines.embedded.kv import Scales
from engines.embedded.kv.cache import TORCH_DTYPES, KvCache
from engines.embedded.layers.attention import Ints, PagedAttention
from engines.embedded.loader import load
from engines.embedded.models.llama import Llama

BASE = "BF16"
KINDS = {
    BASE: EngineConfig(kv_dtype="bfloat16"),
    "FP8 unit": EngineConfig(kv_dtype="fp8_e4m3"),
    "FP8 checkpoint": EngineConfig(kv_dtype="fp8_e4m3", kv_scales="checkpoint"),
}
PAGE_SIZE, CHUNK = KINDS[BASE].page_size, KINDS[BASE].max_batch_tokens
E4M3_MAX = 448
MOST_ROWS = 64  # texts at once, each with a page that isn't full


@dataclass(frozen=True, slots=True)
class Text:
    """Tokens, the last `scored` of which are to be predicted."""

    tokens: list[int]
    scored: int


@dataclass(frozen=True, slots=True)
class Score:
    """Of the scored tokens: their probability's logarithm, and whether all were the likeliest."""

    log_prob: float
    greedy: bool


@dataclass(frozen=True, slots=True)
class _Arrays:
    """What attention looks at: rows whose pages follow each other, after pages that all share."""

    slot_mapping: Ints
    block_tables: Ints
    context_lens: Ints
    query_lens: Ints
    num_pages: Ints
    last_tokens: Ints
    num_decodes: int = 0  # a row of one token may also be taken as a short chunk

    @classmethod
    def of(cls, lengths: Sequence[int], seen: int) -> _Arrays:
        """Rows of so many tokens, each after the `seen` tokens of the first pages: full ones."""
        shared, first = seen // PAGE_SIZE, 1
        tables, slots = [], []
        for length in lengths:
            own = -(-length // PAGE_SIZE)
            start = first + shared
            tables.append([*range(1, shared + 1), *range(start, start + own)])
            slots.append(np.arange(length) + start * PAGE_SIZE)
            first += own
        query_lens = np.array(lengths, np.int64)
        block_tables = np.zeros((len(lengths), max(map(len, tables))), np.int64)
        for row, table in enumerate(tables):
            block_tables[row, : len(table)] = table
        return cls(
            slot_mapping=np.concatenate(slots),
            block_tables=block_tables,
            context_lens=query_lens + seen,
            query_lens=query_lens,
            num_pages=np.array([len(table) for table in tables], np.int64),
            last_tokens=np.cumsum(query_lens) - 1,
        )


class Reader:
    """The model over one kind of page. One prefix at a time, and any number of texts after it."""

    def __init__(self, llama: Llama, kv: KvCache) -> None:
        self._llama = llama
        self._kv = kv
        self._seen = 0

    @torch.inference_mode()
    def read(self, prefix: Sequence[int] = ()) -> Tensor:
        """Forget what was read, and read this, whole pages of it; its hidden states."""
        self._seen, states = 0, []
        for start in range(0, len(prefix), CHUNK):
            part = prefix[start : start + CHUNK]
            states.append(self._hidden([part]))
            self._seen += len(part)
        return torch.cat(states) if states else torch.empty(0)

    @torch.inference_mode()
    def score(self, texts: Sequence[Text]) -> list[Score]:
        """Each text after the prefix, and after no other text."""
        hidden, scores, end = self._hidden([text.tokens for text in texts]), [], 0
        for text in texts:
            end += len(text.tokens)
            # The token before each of those to be predicted.
            logits = self.logits(hidden[end - text.scored - 1 : end - 1])
            targets = torch.tensor(text.tokens[-text.scored :])
            log_probs = logits.log_softmax(dim=1).gather(1, targets[:, None])
            greedy = bool((logits.argmax(dim=1) == targets).all())
            scores.append(Score(float(log_probs.sum()), greedy))
        return scores

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the next token after each of these states."""
        return self._llama.logits(hidden)

    def _hidden(self, rows: Sequence[Sequence[int]]) -> Tensor:
        lengths = [len(row) for row in rows]
        positions = [torch.arange(self._seen, self._seen + length) for length in lengths]
        attention = PagedAttention(self._kv, _Arrays.of(lengths, self._seen), PAGE_SIZE)
        ids = torch.tensor([token for row in rows for token in row])
        return self._llama.hidden(ids, torch.cat(positions), attention)


@contextmanager
def readers(folder: Path, calibration: Iterable[list[int]]) -> Iterator[dict[str, Reader]]:
    """One for each kind. Scales are calibrated on these texts, into a copy of the checkpoint."""
    model = ModelConfig.from_folder(folder)
    llama = Llama(model, load(Checkpoint(folder), model, TORCH_DTYPES[KINDS[BASE].dtype]))
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch)
        for file in [folder / "config.json", *folder.glob("*.safetensors")]:
            (copy / file.name).symlink_to(file.resolve())
        save_file(_calibrated(llama, model, calibration), copy / "kv_scales.safetensors")
        yield {
            name: Reader(llama, KvCache(model, sized, Scales.of(copy, model, sized)))
            for name, sized in ((name, _sized(model, kind)) for name, kind in KINDS.items())
        }


def pages_in(folder: Path, kind: EngineConfig) -> int:
    """How many pages the engine's default memory holds."""
    return kind.kv_memory_bytes // page_bytes(ModelConfig.from_folder(folder), kind)


def _sized(model: ModelConfig, kind: EngineConfig) -> EngineConfig:
    pages = 1 + -(-model.max_context // PAGE_SIZE) + MOST_ROWS
    return replace(kind, kv_memory_bytes=pages * page_bytes(model, kind))


class _Watch:
    """Attention that notes the largest K and V of each layer."""

    def __init__(self, attention: PagedAttention, largest: Tensor) -> None:
        self._attention = attention
        self._largest = largest

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen = torch.stack([k.abs().max(), v.abs().max()]).float()
        self._largest[layer] = torch.maximum(self._largest[layer], seen)
        return self._attention(layer, q, k, v)


@torch.inference_mode()
def _calibrated(llama: Llama, model: ModelConfig, texts: Iterable[list[int]]) -> dict[str, Tensor]:
    """Scales by name, as ModelOpt writes them: the largest number seen becomes the largest code."""
    kv = KvCache(model, _sized(model, KINDS[BASE]))
    largest = torch.zeros(model.num_layers, 2)
    for text in texts:
        attention = PagedAttention(kv, _Arrays.of([len(text)], 0), PAGE_SIZE)
        llama.hidden(torch.tensor(text), torch.arange(len(text)), _Watch(attention, largest))
    return {
        f"model.layers.{layer}.self_attn.{side}_proj.{side}_scale": scale.clone()
        for layer, scales in enumerate(largest / E4M3_MAX)
        for side, scale in zip("kv", scales, strict=True)
    }
