"""FP8 pages against BF16 pages in the same memory: how many requests fit, and what they get done.

Hosts of ours on the same INT4 weights, two with as many bytes for KV: BF16 holds so many requests
of 256 tokens in and 768 out at a time, FP8 twice as many. More clients ask than fit, so that both
are as full as they can be; they take turns. In a small pool memory is what bounds a host, in a
larger one the cores are, too: both are shown. With 4 clients both hold all, and steps are compared.
Answers are long because a prompt's computing is the same whatever it is kept in.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path

from benchmarks.bulkhead import int4_folder, model_folder
from benchmarks.engine_arms import Arm, Cell, Figures, ours
from benchmarks.process import Foreign, end_on_sigterm
from benchmarks.report import at_least, at_most, emit, foreign_note, median, percentile, table
from engines.embedded.config import EngineConfig, ModelConfig, page_bytes

SMALL, LARGE = 3, 6  # requests that BF16 pages hold
PEAKS = {fit: Cell(4 * fit, 4 * fit, 256, 768) for fit in (SMALL, LARGE)}
EQUAL = Cell(4, 4, 1024, 64)
PEAK_BAR = 1.3
STEP_BAR = 1.15  # FP8 is converted, but half as many bytes are read
KV = {"bf16": "bfloat16", "fp8": "fp8_e4m3"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--int4", type=Path, help="an artefact of `bulkhead build`")
    options = parser.parse_args()
    end_on_sigterm()
    folder, foreign = model_folder(), Foreign()
    int4 = options.int4 or int4_folder(folder)
    figures: dict[tuple[str, Cell], list[Figures]] = {}
    with ExitStack() as stack:
        arms: dict[tuple[str, int], Arm] = {
            (name, fit): stack.enter_context(ours(int4, _options(int4, kv, fit), folder))
            for fit in PEAKS
            for name, kv in KV.items()
        }
        cells = [*PEAKS.items(), (LARGE, EQUAL)]
        for number in range(options.rounds + 1):
            for fit, cell in cells:
                for name in KV:
                    done = arms[name, fit].run(cell, f"{number} {name} {cell.name}")
                    if number:  # the first round warms up
                        figures.setdefault((name, cell), []).append(done)
    _tell(figures, foreign.share())


def _options(folder: Path, kv_dtype: str, fit: int) -> dict[str, object]:
    """The same memory whatever lies in it: `fit` requests' worth of BF16."""
    bf16 = EngineConfig(kv_dtype=KV["bf16"])
    peak = PEAKS[fit]
    pages = fit * -(-(peak.prompt_tokens + peak.max_tokens) // bf16.page_size) + 1
    size = pages * page_bytes(ModelConfig.from_folder(folder), bf16)
    return {"kv_dtype": kv_dtype, "kv_memory_bytes": size, "threads": 2, "prefix_cache": False}


def _tell(figures: dict[tuple[str, Cell], list[Figures]], foreign: float) -> None:
    head = ("", "clients", "tokens/s", "min-max", "TTFT p50 ms", "ITL p50/p95 ms", "errors")
    rows = []
    for (name, cell), runs in figures.items():
        rates = [run.tokens_per_s for run in runs]
        gaps = [ms for run in runs for ms in run.gaps_ms]
        ttft = [ms for run in runs for ms in run.ttft_ms]
        errors = sum(len(run.errors) for run in runs)
        itl = f"{percentile(gaps, 50):.1f}/{percentile(gaps, 95):.1f}"
        spread = f"{min(rates):.0f}-{max(rates):.0f}"
        row = (name, cell.clients, median(rates), spread, percentile(ttft, 50), itl, errors)
        rows.append(row)
    print(table(head, rows))
    print(foreign_note(foreign))
    peaks = {
        fit: [
            fp8.tokens_per_s / bf16.tokens_per_s
            for fp8, bf16 in zip(figures["fp8", cell], figures["bf16", cell], strict=True)
        ]
        for fit, cell in PEAKS.items()
    }
    step = [
        median(fp8.gaps_ms) / median(bf16.gaps_ms)
        for fp8, bf16 in zip(figures["fp8", EQUAL], figures["bf16", EQUAL], strict=True)
    ]
    targets = {
        "fp8_x_bf16_peak_throughput": at_least(median(peaks[SMALL]), PEAK_BAR),
        "fp8_x_bf16_peak_throughput_larger_pool": at_least(median(peaks[LARGE]), PEAK_BAR),
        "fp8_x_bf16_a_step": at_most(median(step), STEP_BAR),
    }
    emit("fp8_kv", targets, {"foreign_cpu": foreign, "peak": peaks, "step": step})


if __name__ == "__main__":
    main()
