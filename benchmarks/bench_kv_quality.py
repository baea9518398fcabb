"""What FP8 pages cost in quality: each figure beside that of BF16 pages, on the same texts.

One model in BF16; its KV in BF16, in FP8 as it is (unit), and in FP8 with scales that are
calibrated here (checkpoint). All three read each text in turn, so the differences are paired; their
95 % intervals come from resampling texts, a haystack with its five questions as one.

* WikiText-2: nats a token in windows of 1,024 tokens, the KL divergence of the next token's
  distribution from that over BF16 pages, and how often another token is the likeliest.
* Needles: five four-digit codes at five depths of prose, then a question about each. Recalled means
  that greedy decoding would give the whole code. The model is small: what counts is the difference.
* ARC-Easy by the likeliest answer; LAMBADA by its last word, greedily.

With --against FOLDER, 4-bit weights that were built of the same model, it compares weights instead:
BF16 and those, each over BF16 and FP8 pages, on the first 8,192 tokens of WikiText-2, through the
engine that serves (--options: JSON, as in [[models]]).

Sets are read from ../shared/data beside the checkout, or where --data says; one that isn't there is
skipped. Each part stops taking texts when its time is up: `n` says how many there were. The figures
don't depend on how busy the machine is; only `n` does.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from benchmarks import weights_quality
from benchmarks.bulkhead import model_folder
from benchmarks.kv_results import Difference, Results
from benchmarks.kv_subject import BASE, KINDS, Reader, Text, pages_in, readers
from benchmarks.kv_texts import ARC_EASY, DATA, DEPTHS, LAMBADA, WIKITEXT, Choice, Haystack, Texts
from benchmarks.process import Foreign
from benchmarks.report import at_most, emit, foreign_note, table
from engines.embedded.evaluation.metrics import agreements, divergences, log_probs, nats

T = TypeVar("T")
Readers = dict[str, Reader]

SLICE = 64  # tokens whose logits are held at once
BATCH = 8  # passages at once
LENGTHS = (2048, 4096, 8192)  # of haystacks, with their questions
NATS, KL, OTHER = "WikiText-2 nats/token", "KL nats/token", "other likeliest token"
ARC, WORD, WORD_NATS = "ARC-Easy right", "LAMBADA right", "LAMBADA nats/word"
# Of the differences' upper bounds.
MAX_PPL_RATIO, MAX_KL, MAX_LOST, MAX_RECALL_LOST = 1.02, 0.02, 0.05, 0.10


@dataclass(frozen=True, slots=True)
class Size:
    """How many texts each part takes at most, and how long."""

    windows: int
    haystacks: tuple[int, ...]  # for each of LENGTHS
    questions: int
    passages: int
    calibration: int  # texts
    minutes: float  # for all parts; then none takes another text


USUAL = Size(24, (8, 4, 4), 300, 300, 16, 18)
FULL = Size(10_000, (40, 20, 20), 10_000, 10_000, 64, 100_000)
TINY = Size(2, (1, 0, 0), 4, 4, 2, 20)
SHARES = {"windows": 0.2, "haystacks": 0.5, "questions": 0.18, "passages": 0.12}  # of the minutes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--full", action="store_true", help="all texts, however long it takes")
    parser.add_argument("--tiny", action="store_true", help="few texts: a trial of the bench")
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of evaluation sets")
    parser.add_argument("--threads", type=int, help="all cores unless told else")
    parser.add_argument("--against", type=Path, action="append", help="a folder of other weights")
    parser.add_argument("--options", type=json.loads, default={}, help="the engine's, with those")
    options = parser.parse_args()
    if options.against:
        _weights(options)
        return
    if options.threads:
        torch.set_num_threads(options.threads)
    size = FULL if options.full else TINY if options.tiny else USUAL
    foreign, folder, results = Foreign(), model_folder(), Results(BASE)
    texts = Texts(folder, options.data)
    with readers(folder, texts.calibration(size.calibration, 512)) as by_kind:
        _run(size, texts, by_kind, results)
    _report(results, folder, foreign.share())


def _weights(options: argparse.Namespace) -> None:
    foreign, folder = Foreign(), model_folder()
    texts = Texts(folder, options.data)
    if not _there(texts, WIKITEXT):
        return
    windows = texts.opening(weights_quality.TOKENS)[: 2 if options.tiny else None]
    folders = [folder, *options.against]
    chosen, results = weights_quality.compared(folders, windows, options.options)
    print(weights_quality.told(chosen, results))
    print(foreign_note(foreign.share()))
    targets = {} if options.tiny else weights_quality.targets(chosen, results)
    emit("weights_quality", targets, weights_quality.raw(chosen, results))


def _run(size: Size, texts: Texts, by_kind: Readers, results: Results) -> None:
    limits = {part: share * size.minutes * 60 for part, share in SHARES.items()}
    if _there(texts, WIKITEXT):
        for window in _while(limits["windows"], texts.windows(size.windows)):
            _wikitext(window, by_kind, results)
    # All lengths from the first on: no length is left out when the time is up.
    for length, hay in _while(limits["haystacks"], _haystacks(texts, size.haystacks)):
        _needles(length, hay, by_kind, results)
    if _there(texts, ARC_EASY):
        for choice in _while(limits["questions"], texts.arc_easy(size.questions)):
            _arc(choice, by_kind, results)
    if _there(texts, LAMBADA):
        passages = iter(texts.lambada(size.passages))
        batches = iter(lambda: list(islice(passages, BATCH)), [])
        for batch in _while(limits["passages"], batches):
            _lambada(batch, by_kind, results)


def _there(texts: Texts, name: str) -> bool:
    if not (there := texts.has(name)):
        print(f"skipped: {name} is not there (--data names its folder)")
    return there


def _while(seconds: float, items: Iterable[T]) -> Iterator[T]:
    """The items until the time is up; at least one."""
    began = time.monotonic()
    for item in items:
        yield item
        if time.monotonic() - began > seconds:
            print(f"out of time for more than these ({seconds / 60:.1f} minutes)")
            return


def _haystacks(texts: Texts, numbers: tuple[int, ...]) -> Iterator[tuple[int, Haystack]]:
    """A round of all lengths, then another, for as long as there are any."""
    made = [texts.haystacks(*pair) for pair in zip(LENGTHS, numbers, strict=True)]
    for _ in range(max(numbers)):
        for length, haystacks in zip(LENGTHS, made, strict=True):
            for hay in islice(haystacks, 1):
                yield length, hay


def _wikitext(window: list[int], by_kind: Readers, results: Results) -> None:
    hidden = {kind: reader.read(window)[:-1] for kind, reader in by_kind.items()}
    targets = np.array(window[1:], np.int64)
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for start in range(0, len(targets), SLICE):
        part = slice(start, start + SLICE)
        logs = {
            kind: log_probs(by_kind[kind].logits(states[part]).numpy())
            for kind, states in hidden.items()
        }
        for kind, found in logs.items():
            sums[NATS, kind] += float(nats(found, targets[part]).sum())
            sums[KL, kind] += float(divergences(logs[BASE], found).sum())
            sums[OTHER, kind] += float((~agreements(logs[BASE], found)).sum())
    for (metric, kind), total in sums.items():
        results.add(metric, kind, total / len(targets))


def _needles(length: int, hay: Haystack, by_kind: Readers, results: Results) -> None:
    for kind, reader in by_kind.items():
        reader.read(hay.tokens)
        scores = reader.score(hay.questions)
        recalled = sum(score.greedy for score in scores) / len(scores)
        results.add(_recall(), kind, recalled)
        results.add(_recall(length), kind, recalled)
        results.add(_code_nats(length), kind, -sum(one.log_prob for one in scores) / len(scores))
        for depth, score in zip(DEPTHS, scores, strict=True):
            results.add(_recall(length, depth), kind, score.greedy)


def _recall(length: int | None = None, depth: float | None = None) -> str:
    at = f" at {depth:.0%}" if depth is not None else ""
    return f"recalled from {length:,}{at}" if length else "recalled"


def _code_nats(length: int) -> str:
    return f"nats/code from {length:,}"


def _arc(choice: Choice, by_kind: Readers, results: Results) -> None:
    for kind, reader in by_kind.items():
        reader.read()
        scores = [score.log_prob for score in reader.score(choice.texts)]
        results.add(ARC, kind, scores.index(max(scores)) == choice.right)


def _lambada(passages: list[Text], by_kind: Readers, results: Results) -> None:
    for kind, reader in by_kind.items():
        reader.read()
        for score in reader.score(passages):
            results.add(WORD, kind, score.greedy)
            results.add(WORD_NATS, kind, -score.log_prob)


def _report(results: Results, folder: Path, foreign: float) -> None:
    others = [kind for kind in KINDS if kind != BASE]
    metrics = [NATS, KL, OTHER, _recall()]
    for length in LENGTHS:
        metrics += [_recall(length), *(_recall(length, depth) for depth in DEPTHS)]
        metrics.append(_code_nats(length))
    metrics = [metric for metric in [*metrics, ARC, WORD, WORD_NATS] if metric in results.values]
    rows = [
        (
            metric,
            results.number(metric),
            results.mean(metric, BASE),
            *(_told(results.difference(metric, kind)) for kind in others),
        )
        for metric in metrics
    ]
    print(
        table(("over the same texts", "n", BASE, *(f"{kind}: difference" for kind in others)), rows)
    )
    _tell_perplexity(results, others)
    print("pages in 1 GiB, by arithmetic: " + _capacity(folder))
    print(foreign_note(foreign))
    emit("kv_quality", _targets(results, others), _raw(results, metrics, foreign))


def _told(one: Difference) -> str:
    return f"{one.mean:+.4f} [{one.low:+.4f}, {one.high:+.4f}]"


def _tell_perplexity(results: Results, others: list[str]) -> None:
    if NATS in results.values:
        told = ", ".join(f"{kind} {_perplexity(results, kind):.2f}" for kind in (BASE, *others))
        print(f"perplexity: {told}")


def _perplexity(results: Results, kind: str) -> float:
    return math.exp(results.mean(NATS, kind))


def _capacity(folder: Path) -> str:
    distinct = {engine.kv_dtype: pages_in(folder, engine) for engine in KINDS.values()}
    return ", ".join(f"{kv_dtype} {pages:,}" for kv_dtype, pages in distinct.items())


def _targets(results: Results, others: list[str]) -> dict[str, dict[str, Any]]:
    """Upper bounds of what is lost. Of a set that was skipped there is none."""
    targets = {}
    for kind in others:
        short = kind.lower().replace(" ", "_")
        if NATS in results.values:
            ratio = math.exp(results.difference(NATS, kind).high)
            targets[f"{short}_perplexity_ratio_upper"] = at_most(ratio, MAX_PPL_RATIO)
            targets[f"{short}_kl_upper"] = at_most(results.difference(KL, kind).high, MAX_KL)
        lost = {
            "recall": (_recall(), MAX_RECALL_LOST),
            "arc": (ARC, MAX_LOST),
            "lambada": (WORD, MAX_LOST),
        }
        for name, (metric, most) in lost.items():
            if metric in results.values:
                upper = 0.0 - results.difference(metric, kind).low
                targets[f"{short}_{name}_lost_upper"] = at_most(upper, most)
    return targets


def _raw(results: Results, metrics: list[str], foreign: float) -> dict[str, Any]:
    def of(metric: str, kind: str) -> dict[str, float]:
        one = results.difference(metric, kind)
        mean = results.mean(metric, kind)
        return {"mean": mean, "difference": one.mean, "low": one.low, "high": one.high}

    return {
        "foreign_cpu": foreign,
        "metrics": {
            metric: {"n": results.number(metric)} | {kind: of(metric, kind) for kind in KINDS}
            for metric in metrics
        },
    }


if __name__ == "__main__":
    main()
