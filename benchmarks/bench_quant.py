"""What INT4 weights cost in quality, by the way they were rounded: all in TensorRT-LLM's layout.

Groups of 64, no zero point, scales in bf16, embedding and head in bf16, KV in bf16. Rounded to
nearest (RTN), with AWQ's scales, and as `bulkhead build` does it, all calibrated on the text that
ships; and finished artefacts that --artefact names (`bulkhead build --quantizer modelopt`, say).

WikiText-2's test set, the first 8,192 tokens in windows of 1,024: perplexity, the KL divergence of
the next token's distribution from BF16's, and how often the likeliest token is the same. The set
is read from ../shared/data beside the checkout, or where --data says. No figure depends on how
busy the machine is.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.bulkhead import model_folder
from benchmarks.kv_texts import DATA, WIKITEXT, WINDOW
from benchmarks.report import at_most, emit, table
from engines.build.calibration import SHIPPED, calibration
from engines.build.dense import Rope, linear, rms_norm, run_layer
from engines.build.layers import Streams, Work
from engines.build.recipe import AWQ, OURS, RTN, Recipe
from engines.build.shape import Shape, read_json, shape_of
from engines.build.stored import built_from
from engines.build.weights import Layer, Weights
from engines.tokenizer import FolderTokenizer

RECIPES = {"RTN": RTN, "AWQ": AWQ, "Bulkhead": OURS}
EXACT = "BF16"
GROUP = 64
TOKENS = 8192
SLICE = 256  # tokens whose logits are held at once
MAX_PERPLEXITY, STRETCH_PERPLEXITY = 28.6, 27.7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of evaluation sets")
    parser.add_argument("--calibration", type=Path, default=SHIPPED)
    parser.add_argument("--artefact", type=Path, action="append", default=[], help="finished ones")
    parser.add_argument("--only", choices=RECIPES, action="append", help="of the recipes")
    parser.add_argument("--none", action="store_true", help="none of the recipes")
    parser.add_argument("--windows", type=int, default=0, help="of calibration; 0: all there are")
    options = parser.parse_args()
    if not (options.data / WIKITEXT).is_file():
        print(f"skipped: {WIKITEXT} is not there (--data names its folder)")
        return
    folder = model_folder()
    bench = Bench(folder, options.data / WIKITEXT)
    bench.add(Unchanged())
    windows = calibration(options.calibration, folder).windows
    windows = windows[: options.windows or len(windows)]
    for name in () if options.none else options.only or RECIPES:
        bench.add(Rounding(name, RECIPES[name], bench, windows))
    for artefact in options.artefact:
        bench.add(Finished(artefact))
    bench.run()
    report(bench.results(), 0 if options.none else sum(map(len, windows)))


class Subject(Protocol):
    """A way to have a model: gives its layers in turn."""

    name: str

    def layer(self, index: int, source: Layer) -> Layer:
        """The layer that stands in the place of the source's."""
        ...


class Unchanged(Subject):
    """The source itself."""

    name = EXACT

    def layer(self, index: int, source: Layer) -> Layer:
        weights = {name: weight.bfloat16() for name, weight in source.weights.items()}
        return Layer(weights, source.biases, source.norms)


class Rounding(Subject):
    """Rounded here, after a recipe."""

    def __init__(self, name: str, recipe: Recipe, bench: Bench, windows: list[list[int]]) -> None:
        self.name = name
        self._recipe = recipe
        self._shape = bench.shape
        embedded = bench.embedding[torch.tensor(windows)]
        self._streams = Streams.of(embedded, Rope.of(bench.shape, len(windows[0])))

    def layer(self, index: int, source: Layer) -> Layer:
        work = Work(self._shape, source, self._streams, GROUP, self._recipe)
        return work.run().layer()


class Finished(Subject):
    """As an artefact has it."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self._tensors = load_file(folder / "model.safetensors")
        told = read_json(folder / "hf_quant_config.json")["quantization"]
        self._group = int(told["group_size"])

    def layer(self, index: int, source: Layer) -> Layer:
        prefix = f"model.layers.{index}."
        return built_from(prefix, self._tensors, source, self._group).layer()


@dataclass(frozen=True, slots=True)
class Result:
    """Means over the tokens."""

    perplexity: float
    kl: float
    same: float


class Bench:
    """All subjects read the same text, a layer at a time."""

    def __init__(self, folder: Path, text: Path) -> None:
        self.shape: Shape = shape_of(folder)
        self._weights = Weights(folder, self.shape).__enter__()
        self.embedding = self._weights.embedding()
        tokens = FolderTokenizer(folder).encode(text.read_text("utf-8"))[:TOKENS]
        self._text = torch.tensor(tokens).view(-1, WINDOW)
        self._rope = Rope.of(self.shape, WINDOW)
        self._hidden: dict[str, Tensor] = {}
        self._subjects: list[Subject] = []

    def add(self, subject: Subject) -> None:
        self._subjects.append(subject)
        self._hidden[subject.name] = self.embedding[self._text]

    @torch.inference_mode()
    def run(self) -> None:
        for index in range(self.shape.num_layers):
            source = self._weights.layer(index)
            for subject in self._subjects:
                layer, hidden = subject.layer(index, source), self._hidden[subject.name]
                for window in range(len(hidden)):
                    part = slice(window, window + 1)
                    hidden[part] = run_layer(self.shape, layer, hidden[part], self._rope)
            sys.stderr.write(f"layer {index + 1} of {self.shape.num_layers}\n")

    @torch.inference_mode()
    def results(self) -> dict[str, Result]:
        norm, head = self._weights.norm(), self._weights.head().bfloat16()
        sums = {subject.name: torch.zeros(3, dtype=torch.float64) for subject in self._subjects}
        for window, tokens in enumerate(self._text):
            for start in range(0, WINDOW - 1, SLICE):
                part = slice(start, min(start + SLICE, WINDOW - 1))
                odds = {
                    name: linear(
                        rms_norm(hidden[window, part], norm, self.shape.rms_norm_eps), head
                    ).log_softmax(-1)
                    for name, hidden in self._hidden.items()
                }
                targets = tokens[part.start + 1 : part.stop + 1, None]
                for name, found in odds.items():
                    sums[name] += _sums(odds[EXACT], found, targets)
        total = len(self._text) * (WINDOW - 1)
        means = {name: (one / total).tolist() for name, one in sums.items()}
        return {name: Result(math.exp(one[0]), one[1], one[2]) for name, one in means.items()}


def _sums(exact: Tensor, found: Tensor, targets: Tensor) -> Tensor:
    return torch.tensor(
        [
            -float(found.gather(1, targets).sum()),
            float((exact.exp() * (exact - found)).sum()),
            float((exact.argmax(1) == found.argmax(1)).sum()),
        ],
        dtype=torch.float64,
    )


def report(results: dict[str, Result], calibrated_on: int) -> None:
    head = (f"WikiText-2, {TOKENS:,} tokens", "perplexity", "KL nats/token", "same likeliest")
    rows = [
        (name, f"{one.perplexity:.2f}", f"{one.kl:.3f}", f"{one.same:.1%}")
        for name, one in results.items()
    ]
    print(table(head, rows))
    if calibrated_on:
        print(f"calibrated on {calibrated_on:,} tokens of the text that ships")
    targets: dict[str, dict[str, Any]] = {}
    if "Bulkhead" in results:
        found = results["Bulkhead"].perplexity
        targets["perplexity"] = at_most(found, MAX_PERPLEXITY)
        targets["perplexity_stretch"] = at_most(found, STRETCH_PERPLEXITY)
        if "AWQ" in results:
            targets["perplexity_of_awq"] = at_most(found, results["AWQ"].perplexity)
    raw = {name: [one.perplexity, one.kl, one.same] for name, one in results.items()}
    emit("quant", targets, {"subjects": raw, "calibration_tokens": calibrated_on})


if __name__ == "__main__":
    main()
