"""Output tokens/s over HTTP: our engine host against llama.cpp's server and OpenVINO GenAI.

Each request has tokens of its own, 128 in and 64 out unless told else, greedy, streamed. Ours is
one host as a node starts it: INT4-AWQ weights and FP8 KV as `bulkhead build` makes them, and BF16
beside it. llama.cpp's server runs the packaged GGUF (Q4_1), and the same requantised to Q4_0, which
is faster there; OpenVINO runs the GGUF in process. The gateway's own cost is bench_gateway's.
All are up at once, one is loaded at a time, and they take turns in every round.

    python -m benchmarks.peers          builds llama.cpp for this CPU and installs OpenVINO, once
    python -m benchmarks.bench_engine

How to read it: the ratios, not the rates: this kind of machine drifts by a third within the hour. A
ratio is the median of those within each round. Without the peers built here, llama.cpp is a wheel
compiled for AVX2, and OpenVINO is left out.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import engine_report as report
from benchmarks.bulkhead import SCRATCH, int4_folder, model_folder
from benchmarks.engine_arms import Arm, Cell, Figures, llama_cpp, openvino, ours
from benchmarks.engine_report import BF16, INT4, NEIGHBOUR, OPENVINO, Q4_0, Q4_1
from benchmarks.peers import OPENVINO_PYTHON
from benchmarks.process import Foreign, child, end_on_sigterm, python
from benchmarks.q4_0 import requantised
from benchmarks.read_speed import ReadSpeed, bytes_per_s, step_bytes
from benchmarks.served_quality import perplexities

THREADS = 2
SHORT = (Cell(1, 8), Cell(8, 24), Cell(32, 64))
PREFILL = Cell(1, 3, prompt_tokens=512, max_tokens=1)
LONG = (Cell(1, 1, 1024), Cell(8, 8, 1024), Cell(1, 1, 4096), Cell(1, 1, 8000))
FEWER = 2  # the slow arms send one request where the others send so many
SLOW = (Q4_1, BF16)
BUDGET_S = 20 * 60  # no round begins that would end after it
BURN = "while True: pass"


@dataclass(slots=True)
class Results:
    """What each run showed, by arm and cell, a round after the other."""

    figures: dict[tuple[str, Cell], list[Figures]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def add(self, name: str, cell: Cell, figures: Figures) -> None:
        self.figures[name, cell].append(figures)


def main() -> None:
    options = _options()
    end_on_sigterm()
    results, foreign = Results(), Foreign()
    folder = model_folder()
    int4 = options.int4 or int4_folder(folder)
    began, speeds = time.monotonic(), [bytes_per_s(THREADS)]
    with ExitStack() as stack:
        arms = _arms(stack, folder, int4, slots=32, ctx=32 * 1024)
        for number in _rounds(options.rounds, began, BUDGET_S * 2 / 3):
            for cell in (*SHORT, PREFILL):
                _turns(arms, cell, f"{number}", results)
            with _neighbour():
                for cell in SHORT[:2]:
                    results.add(NEIGHBOUR, cell, arms[INT4].run(cell, f"{number} busy"))
            speeds.append(bytes_per_s(THREADS))
    with ExitStack() as stack:
        arms = _arms(stack, folder, int4, slots=8, ctx=8 * 8192)
        for number in _rounds(options.rounds, began, BUDGET_S):
            for cell in LONG:
                _turns(arms, cell, f"long {number}", results)
    share = foreign.share()
    quality = _quality(folder, int4)
    read = ReadSpeed(step_bytes(int4), speeds)
    report.tell(results.figures, SHORT, LONG, PREFILL, quality, read, share)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--int4", type=Path, help="an artefact of `bulkhead build`, instead of one made here"
    )
    return parser.parse_args()


def _quality(folder: Path, int4: Path) -> dict[str, float]:
    """The perplexity of what each arm serves; the packaged Q4_1 is what BF16 was made from."""
    q4_0 = requantised(folder / "model.gguf", SCRATCH)
    found = perplexities(folder, int4, {"q4_0": q4_0}, SCRATCH)
    names = {INT4: "int4", NEIGHBOUR: "int4", BF16: "bf16", Q4_0: "q4_0", Q4_1: "bf16"}
    return {name: found[of] for name, of in names.items() if of in found}


def _arms(stack: ExitStack, folder: Path, int4: Path, *, slots: int, ctx: int) -> dict[str, Arm]:
    """All of them, up, warm and idle."""
    packaged = folder / "model.gguf"
    options = {"threads": THREADS}
    arms: dict[str, Arm] = {
        INT4: stack.enter_context(ours(int4, options, folder)),
        BF16: stack.enter_context(ours(folder, options, folder)),
    }
    for name, gguf in ((Q4_0, requantised(packaged, SCRATCH)), (Q4_1, packaged)):
        peer = llama_cpp(gguf, folder, slots=slots, ctx=ctx, threads=THREADS)
        arms[name] = stack.enter_context(peer)
    if OPENVINO_PYTHON.exists():
        arms[OPENVINO] = stack.enter_context(openvino(packaged, folder, THREADS))
    for name, arm in arms.items():
        arm.run(Cell(8, 8, max_tokens=8), f"warm-up {name}")
    return arms


def _turns(arms: dict[str, Arm], cell: Cell, seed: str, results: Results) -> None:
    for name, arm in arms.items():
        requests = max(cell.clients, cell.requests // (FEWER if name in SLOW else 1))
        own = Cell(cell.clients, requests, cell.prompt_tokens, cell.max_tokens)
        results.add(name, cell, arm.run(own, f"{seed} {name} {cell.name}"))


def _rounds(number: int, began: float, until_s: float) -> Iterator[int]:
    """As many rounds as asked for, or as there is time for; at least one."""
    first = time.monotonic()
    for done in range(number):
        now = time.monotonic()
        if done and now - began + (now - first) / done > until_s:
            print(f"out of time after {done} rounds")
            return
        yield done


@contextmanager
def _neighbour() -> Iterator[None]:
    """Another process that wants a core all the time."""
    with child([*python("timeit", "-n1", "-r1", BURN)]):
        time.sleep(0.2)
        yield


if __name__ == "__main__":
    main()
