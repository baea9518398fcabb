"""What native attention takes, beside the torch path and beside a plain read of the same bytes.

Heads as the packaged model has them (9, and 3 kv heads, of 64), pages of 16 tokens in a shuffled
order, one thread. A turn stores each row's new tokens and attends, layer by layer, over more pages
than the CPU's caches hold (but for `prefill`, which reads its few pages again and again).
`decode N`: one query a row over N tokens. `prefill N`: all queries of a prompt.
The arms of a cell take turns; figures are medians, and ratios medians of ratios within a turn.
Times are CPU time of the thread, so that a neighbour on the core isn't counted (but is felt).
`read`: of as many bytes as attention reads, one behind the other, by numpy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.process import Foreign, end_on_sigterm
from benchmarks.report import at_least, emit, foreign_note, median, table
from engines.embedded.config import EngineConfig, ModelConfig
from engines.embedded.kv.cache import KvCache
from engines.embedded.layers.attention import PagedAttention
from engines.kernels.native import IS_BUILT, module

LAYERS, PAGE_SIZE = 6, EngineConfig().page_size
NUMBERS = ("bfloat16", "fp8_e4m3")
CELLS = (("decode", 160), ("decode", 1024), ("decode", 8192), ("prefill", 512))
PASS_BYTES = 96 << 20  # that a turn of decoding reads at least
TURNS = 9
MODEL = ModelConfig(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=LAYERS,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    rms_norm_eps=1e-5,
    rope_theta=1e5,
    max_context=8192,
    tied_embeddings=True,
    eos_token_ids=frozenset(),
)
OF_READ, FASTER, PREFILL_FASTER = 0.5, 4.0, 1.0
Ints = NDArray[np.int64]
Arm = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Step:
    """Rows of one kind, as attention wants them."""

    slot_mapping: Ints
    block_tables: Ints
    context_lens: Ints
    query_lens: Ints
    num_pages: Ints
    last_tokens: Ints
    num_decodes: int

    @classmethod
    def of(cls, rows: int, context: int, queries: int, chance: np.random.Generator) -> Step:
        """So many rows, whose last `queries` tokens are computed."""
        pages = -(-context // PAGE_SIZE)
        tables = chance.permutation(rows * pages).reshape(rows, pages)
        positions = np.arange(context - queries, context)
        slots = tables[:, positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE
        each = np.ones(rows, np.int64)
        return cls(
            slots.ravel(), tables, context * each, queries * each, pages * each,
            np.cumsum(queries * each) - 1, rows if queries == 1 else 0,
        )  # fmt: skip


@dataclass
class Cell:
    """One kind of step over one kind of pages; seconds by arm, an entry a turn."""

    name: str
    numbers: str
    rows: int
    read_bytes: int
    seconds: dict[str, list[float]]

    def ratio(self, over: str, under: str) -> float:
        """The median of what `over` takes for each second of `under`."""
        pairs = zip(self.seconds[over], self.seconds[under], strict=True)
        return median([a / b for a, b in pairs])

    def us(self, arm: str) -> float:
        """Of one layer of one row."""
        return median(self.seconds[arm]) / self.rows / LAYERS * 1e6


def main() -> None:
    end_on_sigterm()
    if not IS_BUILT:
        raise SystemExit("needs engines._native: make native")
    torch.set_num_threads(1)
    foreign = Foreign()
    cells = [measured(*cell, numbers) for numbers in NUMBERS for cell in CELLS]
    tell(cells, foreign.share())


def measured(kind: str, context: int, numbers: str) -> Cell:
    """The arms in turns; the first turn is for the caches."""
    queries = context if kind == "prefill" else 1
    row_bytes = 2 * MODEL.num_kv_heads * MODEL.head_dim * context * LAYERS
    row_bytes *= 2 if numbers == "bfloat16" else 1
    rows = 1 if kind == "prefill" else -(-PASS_BYTES // row_bytes)
    step = Step.of(rows, context, queries, np.random.default_rng(0))
    arms = make_arms(step, numbers)
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(TURNS + 1):
        for name, arm in arms.items():
            start = time.thread_time()
            arm()
            if turn > 0:
                seconds[name].append(time.thread_time() - start)
    return Cell(f"{kind} {context}", numbers, rows, rows * row_bytes, seconds)


def make_arms(step: Step, numbers: str) -> dict[str, Arm]:
    engine = EngineConfig(
        kv_dtype=numbers, kv_memory_bytes=pool_bytes(step, numbers), page_size=PAGE_SIZE
    )
    caches = KvCache(MODEL, engine), KvCache(MODEL, engine)
    chance = torch.Generator().manual_seed(0)
    tokens = len(step.slot_mapping)
    q, k, v = (
        torch.randn(tokens, heads, MODEL.head_dim, generator=chance)
        for heads in (MODEL.num_heads, MODEL.num_kv_heads, MODEL.num_kv_heads)
    )
    for cache in caches:  # numbers of any size but for NaN
        cache.memory.data[:] = (
            np.random.default_rng(0)
            .integers(0, 64, 4096, np.uint8)
            .repeat(-(-cache.memory.size // 4096))[: cache.memory.size]
        )
    return {
        "native": native_arm(caches[0], step, numbers, q.numpy(), k.numpy(), v.numpy()),
        "torch": torch_arm(caches[1], step, q.bfloat16(), k.bfloat16(), v.bfloat16()),
        "read": lambda: np.bitwise_xor.reduce(pages_of(caches[0]).view(np.uint64)),
    }


def pool_bytes(step: Step, numbers: str) -> int:
    numbers_of_page = 2 * LAYERS * MODEL.num_kv_heads * PAGE_SIZE * MODEL.head_dim
    return step.block_tables.size * numbers_of_page * (2 if numbers == "bfloat16" else 1)


def pages_of(cache: KvCache) -> NDArray[np.uint8]:
    return cache.memory.data[: cache.num_pages * cache.page_bytes]


def native_arm(cache: KvCache, step: Step, numbers: str, *qkv: NDArray[np.float32]) -> Arm:
    ones = [1.0] * LAYERS
    kernels = module.PagedAttention(
        module.isas()[0], pages_of(cache), LAYERS, MODEL.num_kv_heads, MODEL.head_dim, PAGE_SIZE,
        numbers, ones, ones,
    )  # fmt: skip
    q, k, v = qkv
    out = np.empty_like(q)

    def attend() -> None:
        for layer in range(LAYERS):
            kernels.store(layer, step.slot_mapping, k, v)
            kernels.attend(layer, q, step.block_tables, step.context_lens, step.query_lens, out)

    return attend


def torch_arm(cache: KvCache, step: Step, *qkv: torch.Tensor) -> Arm:
    def attend() -> None:
        attention = PagedAttention(cache, step, PAGE_SIZE)
        for layer in range(LAYERS):
            attention(layer, *qkv)

    return attend


def tell(cells: list[Cell], foreign: float) -> None:
    head = ["a row's layer", "pages", "native us", "torch us", "torch / native", "GB/s", "of read"]
    rows = [[cell.name, cell.numbers, *figures(cell)] for cell in cells]
    print(f"{module.isas()[0]}, one thread; {foreign_note(foreign)}")
    print(table(head, rows))
    emit("attention", targets(cells), raw(cells, foreign))


def figures(cell: Cell) -> list[object]:
    times = [cell.us("native"), cell.us("torch"), cell.ratio("torch", "native")]
    if cell.name.startswith("prefill"):  # reading is no part of what it takes
        return [*times, "-", "-"]
    speed = cell.read_bytes / median(cell.seconds["native"]) / 1e9
    return [*times, speed, cell.ratio("read", "native")]


def targets(cells: list[Cell]) -> dict[str, dict[str, Any]]:
    made = {}
    for cell in cells:
        name = f"{cell.name} {cell.numbers}".replace(" ", "_")
        least = PREFILL_FASTER if cell.name.startswith("prefill") else FASTER
        made[f"{name}_torch_over_native"] = at_least(cell.ratio("torch", "native"), least)
        if cell.name in ("decode 1024", "decode 8192") and cell.numbers == "bfloat16":
            made[f"{name}_of_read"] = at_least(cell.ratio("read", "native"), OF_READ)
    return made


def raw(cells: list[Cell], foreign: float) -> dict[str, Any]:
    return {
        "foreign_cpu": foreign,
        "isa": module.isas()[0],
        "us": {f"{c.name} {c.numbers}": {arm: c.us(arm) for arm in c.seconds} for c in cells},
    }


if __name__ == "__main__":
    main()
