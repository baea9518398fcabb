"""What a configured engine is, told without building it (and without torch)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from engines.api import EngineFacts
from engines.embedded.config import (
    EngineConfig,
    ModelConfig,
    UnsupportedError,
    max_context,
    page_bytes,
)
from engines.embedded.quantization import Quantization
from engines.embedded.settled import settled_options, with_pages


def facts(path: str, options: Mapping[str, Any]) -> EngineFacts:
    """The engine's facts; its context is known once the weights' folder is there.

    What computes is "" where nothing here can: a gateway may tell of hosts on other machines.

    Raises UnsupportedError for options or weights that can't be served.
    """
    folder = Path(path)
    engine = with_pages(EngineConfig.from_options(options), Quantization.of_folder(folder))
    backend = ""
    with suppress(UnsupportedError):
        backend = settled_options(options, folder).backend
    return EngineFacts(
        context_length=_context_length(folder, engine),
        backend=backend,
        dtype=engine.dtype,
        kv_dtype=engine.kv_dtype,
        integrity=engine.integrity,
    )


def _context_length(folder: Path, engine: EngineConfig) -> int:
    if not (folder / "config.json").is_file():
        return engine.max_context
    model = ModelConfig.from_folder(folder)
    return max_context(model, engine, engine.kv_memory_bytes // page_bytes(model, engine))
