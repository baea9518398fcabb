"""What "auto" means: options, a model and this installation -> options that leave nothing open.

Cheap, and without torch: whoever tells what an engine will be asks here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from engines.embedded.config import AUTO, EngineConfig, ModelConfig, UnsupportedError
from engines.embedded.cores import num_threads
from engines.embedded.quantization import Quantization
from engines.extras import how_to_install
from engines.kernels import native

NOT_BUILT = (
    "the native kernels aren't built here: install a C++ compiler and Bulkhead anew (in a source "
    "tree: make dev)"
)
NO_TORCH = f"torch isn't installed here: {how_to_install('torch')}"


def settled_options(options: Mapping[str, Any], folder: Path) -> EngineConfig:
    """The options of an engine on the model in `folder`, which may still be missing."""
    model = ModelConfig.from_folder(folder) if (folder / "config.json").is_file() else None
    return settled(EngineConfig.from_options(options), Quantization.of_folder(folder), model)


def settled(
    engine: EngineConfig,
    quantization: Quantization | None,
    model: ModelConfig | None = None,
    *,
    has_torch: bool | None = None,
) -> EngineConfig:
    """Raises UnsupportedError for what can't be had, saying what to do."""
    engine = with_pages(engine, quantization)
    if has_torch is None:
        has_torch = find_spec("torch") is not None
    engine = replace(engine, backend=_backend(engine, model, has_torch))
    engine = replace(engine, threads=_threads(engine))
    is_int4 = quantization is not None and bool(quantization.weights)
    return replace(
        engine,
        activations=_choice(engine, "activations", "int8", is_int4),
        lm_head=_choice(engine, "lm_head", "int6", is_int4),
    )


def with_pages(engine: EngineConfig, quantization: Quantization | None) -> EngineConfig:
    """With the pages' numbers settled, whatever computes here: for who only tells of an engine."""
    kv_dtype = engine.kv_dtype
    if kv_dtype == AUTO:
        has_fp8 = quantization is not None and quantization.kv_cache == "FP8"
        kv_dtype = "fp8_e4m3" if has_fp8 else "bfloat16"
    if engine.kv_scales == "checkpoint" and kv_dtype != "fp8_e4m3":
        raise UnsupportedError(f"option 'kv_scales' is for kv_dtype 'fp8_e4m3', not {kv_dtype!r}")
    return replace(engine, kv_dtype=kv_dtype)


def native_fault(engine: EngineConfig, model: ModelConfig | None) -> str | None:
    """Why the native backend can't serve this; None if it can."""
    if not native.HAS_MODEL:
        return NOT_BUILT
    if engine.dtype != "bfloat16":
        return f"the native backend computes in bfloat16: 'dtype' is {engine.dtype!r}"
    if engine.kv_dtype not in ("bfloat16", "fp8_e4m3"):
        return f"the native backend has no pages of 'kv_dtype' {engine.kv_dtype!r}"
    if engine.page_size % 2:
        return f"the native backend has no pages of {engine.page_size} tokens: an odd number"
    if model is not None and not _has_native_shape(model):
        return (
            "the native backend wants head_dim and intermediate_size to be multiples of 16, and "
            "hidden_size to be even"
        )
    return None


def _has_native_shape(model: ModelConfig) -> bool:
    return not (model.head_dim % 16 or model.intermediate_size % 16 or model.hidden_size % 2)


def why_not_native(engine: EngineConfig, model: ModelConfig | None) -> dict[str, str]:
    """For the log of an engine on the other backend: what it might have instead."""
    if engine.backend == "native":
        return {}
    return {"not_native": native_fault(engine, model) or "by option 'backend'"}


def _backend(engine: EngineConfig, model: ModelConfig | None, has_torch: bool) -> str:
    fault = None if engine.backend == "torch" else native_fault(engine, model)
    if engine.backend == "native" and fault is not None:
        raise UnsupportedError(f"option 'backend': {fault}")
    if engine.backend != "torch" and fault is None:
        return "native"
    if has_torch:
        return "torch"
    raise UnsupportedError("; ".join(filter(None, [fault, NO_TORCH])))


def _threads(engine: EngineConfig) -> int:
    """Never more than there are cores for. Those of torch wait for each other at barriers."""
    return 1 if engine.backend == "torch" and not engine.threads else num_threads(engine.threads)


def _choice(engine: EngineConfig, name: str, of_int4: str, is_int4: bool) -> str:
    """Auto is `of_int4` for 4-bit models; only the native backend has fewer than 16 bits."""
    value: str = getattr(engine, name)
    if value not in (AUTO, "bfloat16") and engine.backend != "native":
        raise UnsupportedError(f"option {name!r} {value!r} is for backend 'native'")
    if value != AUTO:
        return value
    return of_int4 if is_int4 and engine.backend == "native" else "bfloat16"
