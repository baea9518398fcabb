"""Build an artefact: `python -m engines.build.make SOURCE --out DIR`. Run by `bulkhead build`.

Layer by layer: read, round, keep as a part. At the end the parts are joined into one checkpoint,
looked over, and put in place whole. Tells its steps on stdout, an object a line.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engines.api import EngineError
from engines.build import modelopt
from engines.build.artefact import copy_tokenizer, hf_quant_config, model_config, write_json
from engines.build.calibration import SHIPPED, BadCalibration, Calibration, calibration
from engines.build.complete import refuse_incomplete
from engines.build.dense import Rope
from engines.build.kv_range import LARGEST, KvRange
from engines.build.layers import Streams, Work, observe
from engines.build.parent import end_with_parent
from engines.build.parts import Parts
from engines.build.plan import (
    GROUPS,
    KV,
    QUANTIZERS,
    WEIGHTS,
    BuildError,
    Options,
    Plan,
    check_group,
    plan,
)
from engines.build.preflight import faults
from engines.build.publish import folder_beside, lock, publish, sha256
from engines.build.quality import Quality, quality
from engines.build.record import key_of, record
from engines.build.shape import Shape, UnsuitableModel, shape_of
from engines.build.stored import built_from, layer_of, plain_tensors, tensors_of
from engines.build.tensorfile import BadTensorFile, join
from engines.build.weights import Weights

# What the same inputs would meet again. A crash, a kill or a full disk are none of them.
REFUSALS = (BuildError, UnsuitableModel, BadCalibration, BadTensorFile, EngineError)
WEIGHTS_FILE = "model.safetensors"
Told = Callable[[str, int, int], None]  # a step, and how much of it is done


def build(source: Path, out: Path, options: Options, text: Path, tell: Told) -> Path:
    """Make `out` the artefact and return it; at once if it's there already.

    Raises one of REFUSALS; then nothing is at `out` that wasn't.
    """
    out = out.resolve()
    shape = shape_of(source)
    check_group(shape, options)
    refuse_incomplete(source, shape)
    the_plan = plan(source, text, options)
    out.parent.mkdir(parents=True, exist_ok=True)
    with lock(out, lambda: tell("waiting for another build of the same folder", 0, 1)):
        if key_of(out) == the_plan.key and not faults(out):
            return out
        _refuse_to_replace(out, source)
        parts = Parts(out, the_plan.key)
        with folder_beside(out) as folder:
            try:
                Builder(source, shape, the_plan, text, parts, tell).into(folder)
                if plan(source, text, options) != the_plan:
                    raise BuildError(f"{source} or {text} changed while it was read: build again")
            except REFUSALS:
                parts.remove()  # the same parts would lead to the same end
                raise
            publish(folder, out)
        parts.remove()
    return out


def _refuse_to_replace(out: Path, source: Path) -> None:
    if out == source.resolve():
        raise BuildError(f"{out} is what would be built from: choose another --out")
    if out.exists() and not key_of(out):
        raise BuildError(f"{out} exists and isn't a built model: choose another --out")


class Builder:
    """One build, from the source to a whole folder."""

    def __init__(
        self, source: Path, shape: Shape, the_plan: Plan, text: Path, parts: Parts, tell: Told
    ) -> None:
        self._source = source
        self._shape = shape
        self._plan = the_plan
        self._options = the_plan.options
        self._text = text
        self._parts = parts
        self._tell = tell

    @torch.inference_mode()
    def into(self, folder: Path) -> None:
        """Fill an empty folder."""
        self._tell("reading", 0, 1)
        text = calibration(self._text, self._source)
        if self._options.quantizer == "modelopt":
            self._theirs(folder, text)
        else:
            self._ours(folder, text)

    def _theirs(self, folder: Path, text: Calibration) -> None:
        self._tell("running ModelOpt", 0, 1)
        windows = [text.windows[i] for i in text.fitted]
        modelopt.export(self._source, folder / WEIGHTS_FILE, self._options, windows)
        with Weights(self._source, self._shape) as weights:  # measured as ours are
            streams = self._streams(weights, text)
            with safe_open(folder / WEIGHTS_FILE, framework="pt") as file:
                ranges = [
                    self._layer(weights, streams, i, layer_of(file, i))
                    for i in range(self._shape.num_layers)
                ]
            self._refuse_overflow(ranges)
            found = self._quality(weights, streams, text)
        self._write(folder, text, ranges, found)

    def _ours(self, folder: Path, text: Calibration) -> None:
        with Weights(self._source, self._shape) as weights:
            if kept := self._parts.num_layers():
                self._tell(f"going on, {kept} of {self._shape.num_layers} layers are kept", 0, 1)
            self._put_ends(weights)
            streams = self._streams(weights, text)
            ranges = [self._made(weights, streams, i) for i in range(self._shape.num_layers)]
            self._refuse_overflow(ranges)
            self._put_kv_scales(ranges)
            self._tell("measuring", 0, 1)
            found = self._quality(weights, streams, text)
        self._tell("writing", 0, 1)
        join(self._parts.paths(), folder / WEIGHTS_FILE)
        self._write(folder, text, ranges, found)

    def _put_ends(self, weights: Weights) -> None:
        """What stands before and behind the layers stays as it is, in bf16."""
        if self._parts.path("ends"):
            return
        ends = {
            "model.embed_tokens.weight": weights.embedding(),
            "model.norm.weight": weights.norm(),
        }
        if not self._shape.tied_embeddings:
            ends["lm_head.weight"] = weights.head()
        self._parts.put("ends", {name: tensor.bfloat16() for name, tensor in ends.items()})

    def _streams(self, weights: Weights, text: Calibration) -> Streams:
        embedded = weights.embedding()[torch.tensor(text.windows)]
        rope = Rope.of(self._shape, len(text.windows[0]))
        return Streams.of(embedded, rope, text.held_out)

    def _made(self, weights: Weights, streams: Streams, index: int) -> KvRange:
        """A layer of ours: one that an earlier run has finished, or made now and kept."""
        part, kept = f"layer-{index:04}", {}
        if self._options.weights == "int4-awq":
            kept = self._parts.get(part) or {}
        elif not self._parts.path(part):
            plain = plain_tensors(f"model.layers.{index}.", weights.layer(index))
            self._parts.put(part, plain)
        return self._layer(weights, streams, index, kept)

    def _layer(
        self, weights: Weights, streams: Streams, index: int, stored: dict[str, Tensor]
    ) -> KvRange:
        """The streams move on through a layer as it is stored; {}: it is made, and kept."""
        self._tell("layers", index, self._shape.num_layers)
        source, prefix = weights.layer(index), f"model.layers.{index}."
        if self._options.weights == "bf16":
            found = observe(self._shape, source, streams)
            self._refuse_infinite(index, streams.exact)
            return found
        known = built_from(prefix, stored, source, self._options.group) if stored else None
        work = Work(self._shape, source, streams, self._options.group, known=known)
        try:
            built = work.run()
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise self._infinite(index) from error
        self._refuse_infinite(index, streams.actual)
        if not known:
            self._parts.put(f"layer-{index:04}", tensors_of(prefix, built))
        return work.kv

    def _refuse_infinite(self, index: int, hidden: Tensor) -> None:
        if not bool(torch.isfinite(hidden).all()):
            raise self._infinite(index)

    def _infinite(self, index: int) -> BuildError:
        return BuildError(
            f"layer {index} gives numbers that aren't finite: {self._source} is damaged, "
            "or its numbers don't fit bf16"
        )

    def _refuse_overflow(self, ranges: list[KvRange]) -> None:
        if self._options.kv != "fp8":
            return
        for index, found in enumerate(ranges):
            for name, side in (("K", found.k), ("V", found.v)):
                if side.amax > LARGEST:
                    raise BuildError(
                        f"layer {index}: {name} reaches {side.amax:.0f} and e4m3 ends at 448; "
                        "TensorRT-LLM stores FP8 pages at scale 1 and would cut it: --kv bf16"
                    )

    def _put_kv_scales(self, ranges: list[KvRange]) -> None:
        if self._options.kv == "fp8":
            scales = {}
            for index, found in enumerate(ranges):
                prefix = f"model.layers.{index}.self_attn."
                scales[f"{prefix}k_proj.k_scale"] = torch.tensor(found.k.scale)
                scales[f"{prefix}v_proj.v_scale"] = torch.tensor(found.v.scale)
            self._parts.put("kv", scales)

    def _quality(self, weights: Weights, streams: Streams, text: Calibration) -> Quality | None:
        if self._options.weights == "bf16":
            return None
        ends = weights.norm(), weights.head()
        return quality(self._shape, streams, torch.tensor(text.windows), text.held_out, *ends)

    def _write(
        self, folder: Path, text: Calibration, ranges: list[KvRange], found: Quality | None
    ) -> None:
        asked, shape = self._options, self._shape
        config = model_config(self._source, shape, asked.weights, asked.kv)
        write_json(folder / "config.json", config)
        if (asked.weights, asked.kv) != ("bf16", "bf16"):
            told = hf_quant_config(asked.weights, asked.kv, asked.group)
            write_json(folder / "hf_quant_config.json", told)
        copy_tokenizer(self._source, folder)
        files = {path.name: sha256(path) for path in sorted(folder.iterdir())}
        told = record(self._plan, shape, folder, ranges, found)
        told["calibration"] |= {
            "tokens": sum(map(len, text.windows)),
            "held_out": len(text.held_out),
        }
        write_json(folder / "build.json", told | {"files": files})
        if wrong := faults(folder):
            raise BuildError("what was built fails its own check: " + "; ".join(map(str, wrong)))


def _tell(step: str, done: int, of: int) -> None:
    sys.stdout.write(json.dumps({"step": step, "done": done, "of": of}) + "\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    """The command line. Returns the exit status: 1 with one sentence on stderr if it failed."""
    parser = argparse.ArgumentParser(prog="python -m engines.build.make", description=__doc__)
    parser.add_argument("source", type=Path, help="a folder in Hugging Face layout")
    parser.add_argument("--out", type=Path, required=True, help="the artefact's folder, made here")
    parser.add_argument("--weights", choices=WEIGHTS, default="int4-awq")
    parser.add_argument("--kv", choices=KV, default="fp8")
    parser.add_argument("--group", type=int, choices=GROUPS, default=64)
    parser.add_argument("--calibration", type=Path, default=SHIPPED)
    parser.add_argument("--quantizer", choices=QUANTIZERS, default="bulkhead")
    parser.add_argument("--followed", action="store_true", help="end when stdin ends")
    given = parser.parse_args(arguments)
    if given.followed:
        end_with_parent()
    options = Options(given.weights, given.kv, given.group, given.quantizer)
    try:
        build(given.source, given.out, options, given.calibration, _tell)
    except REFUSALS as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except SafetensorError as error:  # its own words for a full disk, say
        sys.stderr.write(f"error: cannot write the layers beside {given.out}: {error}\n")
        return 1
    except MemoryError:
        sys.stderr.write("error: memory ran out: a shorter --calibration takes less\n")
        return 1
    except OSError as error:
        where = error.filename or given.out
        sys.stderr.write(f"error: {where}: {error.strerror or error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
