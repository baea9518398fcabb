"""How much memory a process with this engine takes, told without building it, or torch."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from engines.embedded.config import EngineConfig, UnsupportedError
from engines.embedded.quantization import Quantization
from engines.embedded.settled import settled

MIB = 1024 * 1024
# Interpreter, tokenizer, what computes, and the activations of a step: as measured.
OVERHEAD_BYTES = {"torch": 512 * MIB, "native": 192 * MIB}
# Of the weights' files: as they are read, and as they are computed with (packed, or wider).
# Measured in bfloat16 with 0.3 and 0.9 GB: 2.1 times while they are read, 1.6 times afterwards.
TIMES = {"bfloat16": 2.0, "float32": 3.0}
INT4_TIMES = 4  # and of 4-bit files that are loaded as wider numbers
PACKED_TIMES = 1.3  # as they are computed with, mapped; a tied model's head lies there twice


def memory_bytes(path: str, options: Mapping[str, Any]) -> int:
    """The most that one engine takes: weights, the whole page pool, and what comes beside.

    Weights that aren't there yet count nothing. Raises UnsupportedError for bad options.
    """
    engine = EngineConfig.from_options(options)
    quantization = Quantization.of_folder(Path(path)) if path else None
    with suppress(UnsupportedError):  # nothing computes it here: its host won't start either
        engine = settled(engine, quantization)
    files = Path(path).glob("*.safetensors") if path else ()
    weights = sum(file.stat().st_size for file in files if file.is_file())
    if engine.backend == "native":
        times = PACKED_TIMES
    else:
        times = TIMES[engine.dtype] * (INT4_TIMES if quantization and quantization.weights else 1)
    overhead = OVERHEAD_BYTES.get(engine.backend, OVERHEAD_BYTES["torch"])
    return int(weights * times) + engine.kv_memory_bytes + overhead
