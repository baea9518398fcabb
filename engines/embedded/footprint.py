"""How much memory a process with this engine takes, told without building it, or torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.embedded.config import EngineConfig

# Interpreter, torch, tokenizer and the activations of a step: 0.4 GB as measured with SmolLM2.
OVERHEAD_BYTES = 512 * 1024 * 1024
WIDTH = {"bfloat16": 1, "float32": 2}  # of a weight in memory, over its width in the file


def memory_bytes(path: str, options: Mapping[str, Any]) -> int:
    """The most that one engine takes: weights, the whole page pool, and what comes beside.

    Weights that aren't there yet count nothing. Raises UnsupportedError for bad options.
    """
    engine = EngineConfig.from_options(options)
    files = Path(path).glob("*.safetensors") if path else ()
    weights = sum(file.stat().st_size for file in files)
    return weights * WIDTH[engine.dtype] + engine.kv_memory_bytes + OVERHEAD_BYTES
