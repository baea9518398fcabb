"""What the native products take, beside torch's own and beside a plain read of the same bytes.

The shapes are the packaged model's: attention's output, gate or up, down, the head. One thread, and
weights that rotate over more bytes than the CPU's caches hold. `torch`: bfloat16 weights with a
linear, int4 ones with `_weight_int4pack_mm_for_cpu`, and for W8A8 `_weight_int8pack_mm`, all with x
in bfloat16. `next`: our kernels for the instruction set after this CPU's best (AVX-512 behind AMX,
AVX2 behind AVX-512). `read`: of as many bytes as the packed weights have, one behind the other, by
numpy.
A native call takes several copies of a matrix at once, as a step takes one after the other without
Python between them; its time includes the rounding of x. `Gop/s`: 2 n k a row.
The arms of a cell take turns; figures are medians, and ratios medians of ratios within a turn.
Times are CPU time of the thread, so that a neighbour on the core isn't counted (but is felt).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.process import Foreign, end_on_sigterm
from benchmarks.report import at_least, emit, foreign_note, median, table
from engines.kernels.native import IS_BUILT, module

KINDS = ("w16a16", "w4a16", "w4a8", "w8a8", "w6a8")
HEAD = (49152, 576)
SHAPES = ((576, 576), (1536, 576), (576, 1536), HEAD)
ROWS = (1, 8, 16, 32, 128, 512)
HEAD_ROWS = 32  # at most: those of a prompt's last tokens alone meet the head
GROUP = 64
ROTATED_BYTES = 112 << 20
TURN_OPS = 1e9  # of products, at least
MOST_OUTPUTS = 1 << 17  # of a call: they stay in the cache
ITEM_BLOCKS = 8  # that a step's thread takes at once
TURNS = 9
# One row: of the read's speed. More: of torch's, and for 4-bit weights operations a second.
OF_READ = {"w16a16": 0.75, "w4a16": 0.5, "w4a8": 0.75, "w8a8": 0.75, "w6a8": 0.75}
FASTER = {"w16a16": 0.9, "w4a16": 1.5, "w4a8": 2.5, "w8a8": 2.5, "w6a8": 2.5}
W4A8_GOPS = 300
ISAS = [*module.isas(), "scalar"] if IS_BUILT else []  # best first, and one after it
Bytes = NDArray[np.uint8]
Arm = Callable[[], object]


@dataclass
class Cell:
    """One product of one shape with so many rows; seconds a product by arm, an entry a turn."""

    kind: str
    shape: tuple[int, int]
    rows: int
    read_bytes: int
    seconds: dict[str, list[float]]

    @property
    def name(self) -> str:
        return f"{self.kind} {self.shape[0]}x{self.shape[1]} M={self.rows}"

    def ratio(self, over: str, under: str) -> float:
        """The median of what `over` takes for each second of `under`."""
        pairs = zip(self.seconds[over], self.seconds[under], strict=True)
        return median([a / b for a, b in pairs])

    def us(self, arm: str) -> float:
        return median(self.seconds[arm]) * 1e6

    def gops(self) -> float:
        return 2e-9 * self.shape[0] * self.shape[1] * self.rows / median(self.seconds["native"])


def main() -> None:
    end_on_sigterm()
    if not IS_BUILT:
        raise SystemExit("needs engines._native: make native")
    torch.set_num_threads(1)
    foreign = Foreign()
    cells = [cell for kind in KINDS for shape in SHAPES for cell in measured(kind, shape)]
    tell(cells, foreign.share())


def measured(kind: str, shape: tuple[int, int]) -> Iterator[Cell]:
    """The arms in turns; the first turn is for the caches."""
    weights = Weights.of(kind, *shape)
    for rows in ROWS:
        if shape == HEAD and rows > HEAD_ROWS:
            continue
        x = torch.randn(rows, shape[1], generator=torch.Generator().manual_seed(rows))
        count = weights.products_of_turn(rows)
        arms = {
            "native": weights.native_arm(x, count, ISAS[0]),
            "next": weights.native_arm(x, count, ISAS[1]),
            "torch": weights.torch_arm(x, count),
            "read": weights.read_arm(count),
        }
        seconds: dict[str, list[float]] = {name: [] for name in arms}
        for turn in range(TURNS + 1):
            for name, arm in arms.items():
                start = time.thread_time()
                arm()
                if turn > 0:
                    seconds[name].append((time.thread_time() - start) / count)
        yield Cell(kind, shape, rows, weights.bytes_of_one, seconds)


@dataclass
class Weights:
    """As many copies of one matrix as don't fit in a cache: packed, and as torch wants them."""

    kind: str
    n: int
    k: int
    packed: Bytes
    copies: int
    torch_product: Callable[[Tensor, int], Tensor]  # of x and a copy's number

    @classmethod
    def of(cls, kind: str, n: int, k: int) -> Weights:
        dense = torch.randn(n, k, generator=torch.Generator().manual_seed(n)).bfloat16()
        one, product = PREPARED[kind](dense)
        copies = -(-ROTATED_BYTES // len(one))
        # numpy asks for huge pages, as the engine does for its weights.
        whole = np.empty(copies * len(one) + 64, np.uint8)
        packed = whole[-whole.ctypes.data % 64 :][: copies * len(one)]
        packed.reshape(copies, -1)[:] = one
        return cls(kind, n, k, packed, copies, product(copies))

    @property
    def bytes_of_one(self) -> int:
        return len(self.packed) // self.copies

    def products_of_turn(self, rows: int) -> int:
        """All copies with one row, which wait for memory; else as many as take a while."""
        enough = int(TURN_OPS / (2 * self.n * self.k * rows)) + 1
        return self.copies if rows == 1 else min(enough, self.copies)

    def native_arm(self, x: Tensor, count: int, isa: str) -> Arm:
        at_once = min(max(MOST_OUTPUTS // (len(x) * self.n), 1), count)
        starts = self._rotate(at_once)

        def multiply() -> None:
            for done in range(0, count, at_once):
                copies = min(at_once, count - done)
                module.linear(
                    self.kind, self._bytes(next(starts), copies), copies * self.n, self.k, GROUP,
                    x.numpy(), isa=isa, blocks=ITEM_BLOCKS,
                )  # fmt: skip

        return multiply

    def torch_arm(self, x: Tensor, count: int) -> Arm:
        numbers, starts = x.bfloat16(), self._rotate(1)

        def multiply() -> None:
            for _ in range(count):
                self.torch_product(numbers, next(starts))

        return multiply

    def read_arm(self, count: int) -> Arm:
        starts = self._rotate(count)
        return lambda: np.bitwise_xor.reduce(self._bytes(next(starts), count).view(np.uint64))

    def _bytes(self, start: int, copies: int) -> Bytes:
        size = self.bytes_of_one
        return self.packed[start * size :][: copies * size]

    def _rotate(self, step: int) -> Iterator[int]:
        """The first of each `step` copies, again and again."""
        while True:
            yield from range(0, self.copies - step + 1, step)


Product = Callable[[int], Callable[[Tensor, int], Tensor]]  # with so many copies


def bf16(dense: Tensor) -> tuple[Bytes, Product]:
    def product(copies: int) -> Callable[[Tensor, int], Tensor]:
        weights = dense.repeat(copies, 1, 1)
        return lambda x, copy: torch.nn.functional.linear(x, weights[copy])

    return module.pack_bf16(dense.view(torch.uint16).numpy()), product


def int8(dense: Tensor, pack: Callable[[NDArray[np.uint16]], Bytes]) -> tuple[Bytes, Product]:
    def product(copies: int) -> Callable[[Tensor, int], Tensor]:
        weights = (dense * 30).to(torch.int8).repeat(copies, 1, 1)
        scales = torch.ones(len(dense)).bfloat16()
        return lambda x, copy: torch._weight_int8pack_mm(x, weights[copy], scales)

    return pack(dense.view(torch.uint16).numpy()), product


def int4(dense: Tensor) -> tuple[Bytes, Product]:
    n, k = dense.shape
    values = (dense * 3).round().clamp(-8, 7).to(torch.int32)
    nibbles = (values & 15).to(torch.uint8)
    packed = module.pack_int4(
        (nibbles[0::2] | nibbles[1::2] << 4).numpy(), np.ones((n, k // GROUP), np.float32)
    )

    def product(copies: int) -> Callable[[Tensor, int], Tensor]:
        one: Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(values + 8, 1)
        weights = one.repeat(copies, 1, 1)
        scales = torch.stack((torch.ones(k // GROUP, n), torch.zeros(k // GROUP, n)), 2).bfloat16()
        multiply = torch.ops.aten._weight_int4pack_mm_for_cpu
        return lambda x, copy: multiply(x, weights[copy], GROUP, scales)

    return packed, product


PREPARED: dict[str, Callable[[Tensor], tuple[Bytes, Product]]] = {
    "w16a16": bf16,
    "w4a16": int4,
    "w4a8": int4,
    "w8a8": lambda dense: int8(dense, module.pack_int8),
    "w6a8": lambda dense: int8(dense, module.pack_int6),  # torch has nothing of 6 bits
}


def tell(cells: list[Cell], foreign: float) -> None:
    after = f"{ISAS[1]} / native"
    head = ["product", "native us", after, "torch us", "torch / native", "Gop/s", "GB/s", "of read"]
    print(f"{ISAS[0]}, one thread; {foreign_note(foreign)}")
    print(table(head, [[cell.name, *figures(cell)] for cell in cells]))
    emit("linear", targets(cells), raw(cells, foreign))


def figures(cell: Cell) -> list[object]:
    beside = [cell.us("native"), cell.ratio("next", "native"), cell.us("torch")]
    times = [*beside, cell.ratio("torch", "native"), cell.gops()]
    if cell.rows > 1:  # computing is what takes the time
        return [*times, "-", "-"]
    speed = cell.read_bytes / median(cell.seconds["native"]) / 1e9
    return [*times, speed, cell.ratio("read", "native")]


def targets(cells: list[Cell]) -> dict[str, dict[str, Any]]:
    """Of each kind and number of rows, the median over the shapes."""
    made = {}
    for kind in KINDS:
        for rows in ROWS:
            some = [cell for cell in cells if (cell.kind, cell.rows) == (kind, rows)]
            name = f"{kind}_M{rows}"
            faster = median([cell.ratio("torch", "native") for cell in some])
            made[f"{name}_torch_over_native"] = at_least(faster, FASTER[kind])
            if rows == 1:
                of_read = median([cell.ratio("read", "native") for cell in some])
                made[f"{name}_of_read"] = at_least(of_read, OF_READ[kind])
            elif kind == "w4a8":
                gops = median([cell.gops() for cell in some])
                made[f"{name}_gops"] = at_least(gops, W4A8_GOPS)
    return made


def raw(cells: list[Cell], foreign: float) -> dict[str, Any]:
    return {
        "foreign_cpu": foreign,
        "isas": ISAS[:2],
        "us": {cell.name: {arm: cell.us(arm) for arm in cell.seconds} for cell in cells},
    }


if __name__ == "__main__":
    main()
