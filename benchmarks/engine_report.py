"""What bench_engine tells: a table of all cells, then ratios against their bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.engine_arms import Cell, Figures
from benchmarks.read_speed import ReadSpeed
from benchmarks.report import at_least, emit, foreign_note, median, percentile, table

INT4, BF16 = "ours INT4, FP8 KV", "ours BF16"
Q4_0, Q4_1, OPENVINO = "llama.cpp Q4_0", "llama.cpp Q4_1", "OpenVINO"
NEIGHBOUR = "ours INT4, busy neighbour"
X_LLAMA = {1: 1.8, 8: 2.8, 32: 2.5}  # our tokens/s over llama.cpp's best, by clients
X_OPENVINO = {8: 1.3, 32: 1.3}
X_PREFILL, X_INT4, X_NEIGHBOUR, OF_MEMORY = 1.5, 1.55, 0.4, 0.6
HEAD = (
    *("", "tokens/s", "min-max", "ours / it", "TTFT p50/p95 ms", "ITL p50/p95 ms"),
    *("perplexity", "errors"),
)

All = Mapping[tuple[str, Cell], Sequence[Figures]]


def tell(
    figures: All,
    short: Sequence[Cell],
    long: Sequence[Cell],
    prefill: Cell,
    quality: Mapping[str, float],
    read: ReadSpeed,
    foreign: float,
) -> None:
    """Print it all. `quality`: the perplexity of what an arm serves, where it is known."""
    for cell in (*short, prefill, *long):
        rows = [_row(figures, name, cell, quality.get(name)) for name, of in figures if of == cell]
        print(f"\n{cell.name}\n{table(HEAD, rows)}")
    print(foreign_note(foreign))
    step_ms = median([median(run.gaps_ms) for run in figures[INT4, short[0]]])
    print(
        f"at c=1 a step reads {read.step_bytes / 1e6:.0f} MB in {step_ms:.2f} ms, "
        f"{read.share(step_ms):.0%} of what as many plain readers get"
    )
    targets = _targets(figures, short, prefill)
    targets["of_memory_speed_at_1"] = at_least(read.share(step_ms), OF_MEMORY)
    raw = {"foreign_cpu": foreign, "perplexity": dict(quality), **_raw(figures)}
    emit("engine", targets, raw | {"memory": asdict(read)})


def _targets(figures: All, short: Sequence[Cell], prefill: Cell) -> dict[str, Any]:
    targets: dict[str, Any] = {}
    for cell in short:
        at = f"at_{cell.clients}"
        best = min(_ratio(figures, peer, cell) for peer in (Q4_0, Q4_1))
        targets[f"x_llama_cpp_{at}"] = at_least(best, X_LLAMA[cell.clients])
        if (OPENVINO, cell) in figures and cell.clients in X_OPENVINO:
            x_openvino = _ratio(figures, OPENVINO, cell)
            targets[f"x_openvino_{at}"] = at_least(x_openvino, X_OPENVINO[cell.clients])
        if (NEIGHBOUR, cell) in figures:
            share = 1 / _ratio(figures, NEIGHBOUR, cell)
            targets[f"with_a_busy_neighbour_{at}"] = at_least(share, X_NEIGHBOUR)
    peers = [peer for peer in (Q4_0, Q4_1, OPENVINO) if (peer, prefill) in figures]
    fastest = min(_prefill_ratio(figures, peer, prefill) for peer in peers)
    targets["x_best_peers_prefill"] = at_least(fastest, X_PREFILL)
    targets["int4_x_bf16_decode_at_1"] = at_least(_decode_ratio(figures, short[0]), X_INT4)
    return targets


def _ratio(figures: All, peer: str, cell: Cell) -> float:
    """Our tokens/s over its, the median of the rounds' own ratios."""
    pairs = zip(figures[INT4, cell], figures[peer, cell], strict=True)
    return median([a.tokens_per_s / b.tokens_per_s for a, b in pairs if b.tokens_per_s])


def _prefill_ratio(figures: All, peer: str, cell: Cell) -> float:
    """Its time for a prompt over ours: whole requests, since one peer streams nothing."""
    return _ratio(figures, peer, cell)


def _decode_ratio(figures: All, cell: Cell) -> float:
    """BF16's time between two tokens over INT4's."""
    pairs = zip(figures[INT4, cell], figures[BF16, cell], strict=True)
    return median([median(b.gaps_ms) / median(a.gaps_ms) for a, b in pairs])


def _row(figures: All, name: str, cell: Cell, perplexity: float | None) -> tuple[object, ...]:
    runs = figures[name, cell]
    rates = [run.tokens_per_s for run in runs]
    ratio = "" if name == INT4 else _ratio(figures, name, cell)
    ttft = [ms for run in runs for ms in run.ttft_ms]
    gaps = [ms for run in runs for ms in run.gaps_ms]
    errors = sum(len(run.errors) for run in runs)
    spread = f"{min(rates):.0f}-{max(rates):.0f}"
    times = (_both(ttft), _both(gaps))
    return (name, median(rates), spread, ratio, *times, perplexity or "", errors)


def _both(values: Sequence[float]) -> str:
    return f"{percentile(values, 50):.1f}/{percentile(values, 95):.1f}" if values else ""


def _raw(figures: All) -> dict[str, Any]:
    return {
        f"{name}: {cell.name}": {
            "tokens_per_s": [run.tokens_per_s for run in runs],
            "ttft_p50_ms": [percentile(run.ttft_ms, 50) for run in runs],
            "itl_p50_ms": [percentile(run.gaps_ms, 50) for run in runs],
            "errors": [error for run in runs for error in run.errors],
        }
        for (name, cell), runs in figures.items()
    }
