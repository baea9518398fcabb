"""How much memory a process with this engine takes, told without building it, or torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.embedded.config import EngineConfig

# Interpreter, torch, tokenizer and the activations of a step: 0.45 GB as measured.
OVERHEAD_BYTES = 512 * 1024 * 1024
# Of the weights' files: as they are read, and as they are computed with (packed, or wider).
# Measured in bfloat16 with 0.3 and 0.9 GB: 2.1 times while they are read, 1.6 times afterwards.
TIMES = {"bfloat16": 2, "float32": 3}


def memory_bytes(path: str, options: Mapping[str, Any]) -> int:
    """The most that one engine takes: weights, the whole page pool, and what comes beside.

    Weights that aren't there yet count nothing. Raises UnsupportedError for bad options.
    """
    engine = EngineConfig.from_options(options)
    files = Path(path).glob("*.safetensors") if path else ()
    weights = sum(file.stat().st_size for file in files)
    return weights * TIMES[engine.dtype] + engine.kv_memory_bytes + OVERHEAD_BYTES
