"""Looks over an artefact before anything serves it: what TensorRT-LLM would load silently wrong.

Torch-free; reads headers, small tensors and JSON. Each fault says where it is, and why it matters.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.build.described import (
    Fault,
    agreement_faults,
    quantization_faults,
    rope_faults,
)
from engines.build.publish import sha256
from engines.build.shape import Shape, UnsuitableModel, read_json, shape_of
from engines.build.tensorfile import BadTensorFile, Entry, entries_of

FOLDED = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
)
FACTORED = ("self_attn.o_proj", "mlp.down_proj")
ENDS = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
BUFFERS = (".rotary_emb.inv_freq",)  # old files have them; everybody computes them anew


def faults(folder: Path, *, is_quick: bool = False) -> list[Fault]:
    """Everything that is wrong with the artefact in a folder. []: it can be served.

    Quick: what files' headers and JSON say, in a moment. Else every file is read and its digest
    taken, seconds a gigabyte.
    """
    try:
        return list(_faults(folder, is_quick))
    except (UnsuitableModel, BadTensorFile) as error:
        return [Fault(str(folder), str(error))]


def _faults(folder: Path, is_quick: bool) -> Iterator[Fault]:
    config = read_json(folder / "config.json")
    shape = shape_of(folder, quantised=True)
    entries = entries_of(folder)
    if shape.num_layers > len(entries):
        reason = f"num_hidden_layers is {shape.num_layers}, and there are {len(entries)} tensors"
        yield Fault("config.json", reason)
        return
    told = _quantization(folder)
    yield from rope_faults(config, shape)
    yield from agreement_faults(config, told)
    if not told and any(entry.dtype == "U8" for entry in entries.values()):
        yield Fault("hf_quant_config.json", "is missing, and weights are in 4 bits")
    yield from _ends(shape, entries)
    yield from quantization_faults(told, shape)
    with_bias = biased(config, shape)
    layers = [
        Layer(f"model.layers.{index}.", shape, entries, told, with_bias)
        for index in range(shape.num_layers)
    ]
    for layer in layers:
        yield from layer.faults()
    yield from _unread(entries, layers)
    if not is_quick:
        yield from _numbers(entries)
        yield from _damage(folder)


def biased(config: Mapping[str, Any], shape: Shape) -> frozenset[str]:
    """The matrices whose bias is read: what the family says, and two keys of config.json."""
    if shape.family == "qwen2":
        return frozenset(FOLDED[:3])
    attention = [name for name in shape.linears() if name.startswith("self_attn.")]
    rest = [name for name in shape.linears() if name.startswith("mlp.")]
    found = attention if config.get("attention_bias") else []
    return frozenset(found + (rest if config.get("mlp_bias") else []))


def _unread(entries: Mapping[str, Entry], layers: list[Layer]) -> Iterator[Fault]:
    """What lies there and has no place in this model changes nothing, where it should."""
    read = {name for layer in layers for name in layer.names()} | ENDS
    for name in sorted(entries.keys() - read):
        if not name.endswith(BUFFERS):
            yield Fault(name, "has no place in this model, as config.json tells it: it is unread")


def _numbers(entries: Mapping[str, Entry]) -> Iterator[Fault]:
    for name, entry in entries.items():
        if not entry.is_finite():
            yield Fault(name, "holds a NaN or an infinity")
        elif name.endswith(".pre_quant_scale") and not entry.read().all():
            yield Fault(name, "is 0 somewhere: that input would be lost")


def _damage(folder: Path) -> Iterator[Fault]:
    """Files that aren't those that were built, where build.json tells of them."""
    path = folder / "build.json"
    told = read_json(path).get("files", {}) if path.is_file() else {}
    if not isinstance(told, dict):
        yield Fault("build.json: files", "is no object of digests")
        return
    for name, digest in told.items():
        if not (folder / name).is_file():
            yield Fault(name, "is missing, and build.json tells of it")
        elif sha256(folder / name) != digest:
            yield Fault(name, "isn't what was built: build.json tells of another SHA-256")


def _quantization(folder: Path) -> dict[str, Any]:
    if not (folder / "hf_quant_config.json").is_file():
        return {}
    told = read_json(folder / "hf_quant_config.json").get("quantization")
    if not isinstance(told, dict) or "quant_algo" not in told:
        raise UnsuitableModel("hf_quant_config.json has no `quantization.quant_algo`")
    return told


def _ends(shape: Shape, entries: Mapping[str, Entry]) -> Iterator[Fault]:
    vocab, hidden = shape.vocab_size, shape.hidden_size
    yield from _misshapen(entries, "model.embed_tokens.weight", (vocab, hidden), "BF16")
    yield from _misshapen(entries, "model.norm.weight", (hidden,), "BF16")
    if not shape.tied_embeddings:
        yield from _misshapen(entries, "lm_head.weight", (vocab, hidden), "BF16")
    elif "lm_head.weight" in entries:
        yield Fault(
            "lm_head.weight", "is there although tie_word_embeddings is true: one is unread"
        )


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's tensors."""

    prefix: str
    shape: Shape
    entries: Mapping[str, Entry]
    told: Mapping[str, Any]
    biased: frozenset[str]  # matrices that have one

    def names(self) -> Iterator[str]:
        """All that is read of it, or has a fault of its own where it isn't."""
        for name in self.shape.norms():
            yield f"{self.prefix}{name}.weight"
        packed = ("weight_scale", "pre_quant_scale") if self.told.get("quant_algo") else ()
        for name in self.shape.linears():
            biases = ("bias",) if name in self.biased else ()
            yield from (f"{self.prefix}{name}.{part}" for part in ("weight", *biases, *packed))
        yield from map(self._kv_scale, ("k", "v"))

    def _kv_scale(self, part: str) -> str:
        return f"{self.prefix}self_attn.{part}_proj.{part}_scale"

    def faults(self) -> Iterator[Fault]:
        """Everything that is wrong with it."""
        for name, size in self.shape.norms().items():
            yield from _misshapen(self.entries, f"{self.prefix}{name}.weight", (size,), "BF16")
        for name, (rows, columns) in self.shape.linears().items():
            if self.told.get("quant_algo"):
                yield from self._packed(name, rows, columns)
            else:
                weight = f"{self.prefix}{name}.weight"
                yield from _misshapen(self.entries, weight, (rows, columns), "BF16")
        for name in sorted(self.biased):
            rows, _ = self.shape.linears()[name]
            yield from _misshapen(self.entries, f"{self.prefix}{name}.bias", (rows,), "BF16")
        if self.told.get("quant_algo"):
            yield from self._factors()
        yield from self._kv_scales()

    def _packed(self, name: str, rows: int, columns: int) -> Iterator[Fault]:
        group = self.told.get("group_size")
        full = self.prefix + name
        yield from _misshapen(self.entries, f"{full}.weight", (rows // 2, columns), "U8")
        if isinstance(group, int) and group > 0 and columns % group == 0:
            scale = f"{full}.weight_scale"
            yield from _misshapen(self.entries, scale, (rows, columns // group), "F32")

    def _factors(self) -> Iterator[Fault]:
        for name in FOLDED:
            if (factors := f"{self.prefix}{name}.pre_quant_scale") in self.entries:
                yield Fault(
                    factors,
                    "is not folded into the norm before; TensorRT-LLM fuses this matrix with its "
                    "neighbours and doesn't read it" + self._unshared(name),
                )
        for name in FACTORED:
            factors, columns = f"{self.prefix}{name}.pre_quant_scale", self.shape.linears()[name][1]
            if factors not in self.entries:
                yield Fault(factors, "is missing; TensorRT-LLM stops without it (ones will do)")
            else:
                yield from _misshapen(self.entries, factors, (columns,), "BF16")

    def _unshared(self, name: str) -> str:
        """Matrices that read the same input must have shared one scale, or no norm can take it."""
        group = FOLDED[:3] if name in FOLDED[:3] else FOLDED[3:]
        found = [self.entries.get(f"{self.prefix}{one}.pre_quant_scale") for one in group]
        values = {entry.read().tobytes() for entry in found if entry is not None}
        if len(values) > 1 or None in found:
            return f", and {', '.join(one.rpartition('.')[2] for one in group)} don't share one"
        return ""

    def _kv_scales(self) -> Iterator[Fault]:
        wants = self.told.get("kv_cache_quant_algo") == "FP8"
        for part in ("k", "v"):
            name = self._kv_scale(part)
            entry = self.entries.get(name)
            if entry is None:  # ModelOpt's "cast" mode stores none at all: scale 1
                if any(other.endswith((".k_scale", ".v_scale")) for other in self.entries):
                    yield Fault(name, "is missing, and others are there: all of them, or none")
                continue
            if not wants:
                yield Fault(name, "is there, but kv_cache_quant_algo isn't FP8: it would be unread")
                continue
            if entry.size != 4 or entry.dtype != "F32":
                yield Fault(name, f"is {entry.dtype} {entry.shape} instead of one F32 number")
                continue
            scale = float(entry.read().item())
            if not 0 < scale < math.inf:
                yield Fault(name, f"is {scale:g} instead of a number above 0")
            elif scale > 1:
                yield Fault(
                    name,
                    f"says that {part.upper()} reaches {448 * scale:.0f}; TensorRT-LLM stores FP8 "
                    "pages at scale 1, which ends at 448: build with --kv bf16",
                )


def _misshapen(
    entries: Mapping[str, Entry], name: str, shape: tuple[int, ...], dtype: str
) -> Iterator[Fault]:
    entry = entries.get(name)
    if entry is None:
        yield Fault(name, "is missing")
    elif entry.shape != shape or entry.dtype != dtype:
        yield Fault(name, f"is {entry.dtype} {entry.shape} instead of {dtype} {shape}")


def main(arguments: list[str] | None = None) -> int:
    """The command line: faults on stderr, one a line. Returns 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m engines.build.preflight", description=__doc__)
    parser.add_argument("folder", type=Path)
    found = faults(parser.parse_args(arguments).folder)
    for fault in found:
        sys.stderr.write(f"error: {fault}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
