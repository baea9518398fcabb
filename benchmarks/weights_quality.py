"""Weights of several kinds over pages of several kinds: perplexity and divergence on WikiText-2.

Through the engine that serves (native where it is built), in chunks and pages, side by side.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kv_results import Results
from benchmarks.report import at_most, table
from engines.api import EngineSpec
from engines.embedded.config import EngineConfig
from engines.embedded.engine import EmbeddedEngine, create
from engines.embedded.evaluation import metrics
from engines.embedded.evaluation.choices import Choice, choices
from engines.embedded.evaluation.reading import side_by_side
from engines.embedded.settled import settled_options

TOKENS = 8192
NATS, KL, OTHER = "nats/token", "KL nats/token", "other likeliest token"
SLICE = 8  # tokens whose probabilities are held in full at once
MAX_INT4_PERPLEXITY = 28.6  # of 4-bit weights of the packaged model, over BF16 pages


def compared(
    folders: Sequence[Path], windows: Sequence[list[int]], options: Mapping[str, Any]
) -> tuple[list[Choice], Results]:
    """By window: each choice's nats, its divergence from the first, and how often it differs."""
    chosen = choices(folders, options, max(map(len, windows)))
    results = Results(chosen[0].name)
    with ExitStack() as stack:
        engines = []
        for choice in chosen:
            engines.append(create(EngineSpec(choice.name, str(choice.folder), choice.options)))
            stack.callback(engines[-1].close)
        page_size = EngineConfig.from_options(chosen[0].options).page_size
        for window in windows:
            for (metric, name), value in _window(chosen, engines, page_size, window).items():
                results.add(metric, name, value)
    return chosen, results


def _window(
    chosen: Sequence[Choice], engines: Sequence[EmbeddedEngine], page_size: int, window: list[int]
) -> dict[tuple[str, str], float]:
    sums: dict[tuple[str, str], float] = defaultdict(float)
    targets = np.array(window[1:], np.int64)
    for start, parts in side_by_side(engines, page_size, window):
        for first in range(0, len(parts[0]), SLICE):
            ends = targets[start + first : start + first + SLICE]
            logs = [metrics.log_probs(part[first : first + SLICE][: len(ends)]) for part in parts]
            for choice, found in zip(chosen, logs, strict=True):
                sums[NATS, choice.name] += float(metrics.nats(found, ends).sum())
                sums[KL, choice.name] += float(metrics.divergences(logs[0], found).sum())
                differs = ~metrics.agreements(logs[0], found)
                sums[OTHER, choice.name] += float(differs.sum())
    return {key: total / len(targets) for key, total in sums.items()}


def told(chosen: Sequence[Choice], results: Results) -> str:
    """A line for each choice; intervals are of its difference from the base."""
    rows = [_row(choice, results) for choice in chosen]
    heading = ("WikiText-2", "computed by", "perplexity", "ratio to the base", KL, OTHER)
    return table(heading, rows)


def targets(chosen: Iterable[Choice], results: Results) -> dict[str, dict[str, Any]]:
    """The bound of 4-bit weights over BF16 pages."""
    return {
        f"{choice.weights.replace(' ', '_')}_perplexity": at_most(
            perplexity(results, choice.name), MAX_INT4_PERPLEXITY
        )
        for choice in chosen
        if choice.weights != "bf16" and choice.kv == "bf16"
    }


def raw(chosen: Iterable[Choice], results: Results) -> dict[str, Any]:
    """For the record."""
    return {
        choice.name: {
            "folder": str(choice.folder),
            "perplexity": perplexity(results, choice.name),
            "kl": results.mean(KL, choice.name),
            "other_likeliest": results.mean(OTHER, choice.name),
            "windows": results.number(NATS),
        }
        for choice in chosen
    }


def perplexity(results: Results, name: str) -> float:
    """Of one choice, over all windows."""
    return math.exp(results.mean(NATS, name))


def _row(choice: Choice, results: Results) -> tuple[object, ...]:
    engine = settled_options(choice.options, choice.folder)
    nats = results.difference(NATS, choice.name)
    ratio, low, high = (math.exp(bound) for bound in (nats.mean, nats.low, nats.high))
    kl = results.difference(KL, choice.name)
    return (
        choice.name,
        f"{engine.backend}, activations {engine.activations}, head {engine.lm_head}",
        f"{perplexity(results, choice.name):.2f}",
        f"{ratio:.4f} [{low:.4f}, {high:.4f}]",
        f"{kl.mean:.4f} [{kl.low:.4f}, {kl.high:.4f}]",
        f"{results.mean(OTHER, choice.name):.1%}",
    )
