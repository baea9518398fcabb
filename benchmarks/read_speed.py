"""How near a step comes to the memory's speed: the bytes it must read, and how fast that goes.

At one request each step reads all weights once, so memory bounds it. The bound is measured beside
it, by as many readers as the engine has threads (memory_read.cpp, pages of 2 MiB).
"""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench_memory import SIZE_MIB, build, command
from engines.embedded.config import ModelConfig
from engines.embedded.native_backend import weights_of
from engines.embedded.settled import settled_options

NOT_READ_WHOLE = ("embedding", "cos", "sin")  # a step takes a few rows of these
MODE, SECONDS = "anonymous-huge", 0.5


@dataclass(frozen=True, slots=True)
class ReadSpeed:
    """Bytes that one step reads, and the bytes a second that `readers` at once got, by round."""

    step_bytes: int
    bytes_per_s: list[float]

    def share(self, step_ms: float) -> float:
        """How much of the memory's speed a step uses that takes so long."""
        median = sorted(self.bytes_per_s)[len(self.bytes_per_s) // 2]
        return self.step_bytes / (step_ms / 1000) / median


def step_bytes(folder: Path) -> int:
    """What a step reads of the packed weights of the model in `folder`, served by default."""
    model, options = ModelConfig.from_folder(folder), settled_options({}, folder)
    weights = weights_of(folder, model, options)
    arrays = weights.header.arrays
    return sum(weights.array(name).nbytes for name in arrays if name not in NOT_READ_WHOLE)


def bytes_per_s(readers: int) -> float:
    """What so many readers get together, each on memory of its own."""
    with tempfile.TemporaryDirectory() as folder:
        program, file = build(Path(folder)), Path(folder) / "weights"
        file.write_bytes(bytes(SIZE_MIB << 20))
        words = command(program, MODE, file, SECONDS)
        running = [
            subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(readers)
        ]
        told = [process.communicate()[0].split() for process in running]
    return sum(float(median) for *_, median, _, _ in told) * 1e9
