"""What a model that TensorRT-LLM serves is, as its settings and its checkpoint tell it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import convert

from engines.api import EngineFacts
from engines.trtllm.checkpoint import BadCheckpoint, Checkpoint, read
from engines.trtllm.phases import phases
from engines.trtllm.settings import TrtSettings

KV_DTYPES = {"bf16": "bfloat16", "fp8": "fp8_e4m3", "nvfp4": "nvfp4"}


def facts(path: str, options: Mapping[str, Any]) -> EngineFacts:
    """The facts, of `[models.trt]` as `options`. What only a checkpoint elsewhere tells is "".

    Where prompts and answers have checkpoints of their own, it is the answers' that is told of.
    """
    trt = convert(options, TrtSettings)
    phase = phases(trt, path)[-1]
    found = _found(phase.path)
    kv = trt.kv_dtype if phase.kv_dtype is None else phase.kv_dtype
    if kv == "auto":
        kv = found.own_kv if found else ""
    return EngineFacts(
        context_length=_context_length(trt, found),
        backend="tensorrt-llm",
        kv_dtype=KV_DTYPES.get(kv, ""),
        integrity="guard" if trt.guard else "off",
        quantization=found.weights if found else "",
    )


def _found(path: str | None) -> Checkpoint | None:
    try:
        return read(Path(path)) if path else None
    except BadCheckpoint:
        return None


def _context_length(trt: TrtSettings, found: Checkpoint | None) -> int:
    lengths = [trt.max_seq_len, found.max_context if found else 0]
    return min((length for length in lengths if length), default=0)
