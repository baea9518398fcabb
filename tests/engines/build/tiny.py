"""Tiny random models of the three families, text to calibrate them on, and builds of both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engines.build.make import build
from engines.build.plan import Options
from tests.engines.test_families import LLAMA3, SHAPE, save_random

# Groups of 64 divide every matrix' inputs.
BASE = SHAPE | {"intermediate_size": 128, "num_hidden_layers": 3}
WORDS = ("quick", "brown", "fox", "jumps", "over", "lazy", "dog", "while", "rain", "on", "tin")
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama-untied": {"model_type": "llama", "tie_word_embeddings": False},
    "llama3-rope": {"model_type": "llama", "rope_scaling": LLAMA3},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "attention_bias": False},
}


def model(name: str, folder: Path, **changed: Any) -> Path:
    """A model with random weights, norms and biases, and a byte tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    save_random(BASE | MODELS[name] | changed, folder)
    return folder


def text(folder: Path, tokens: int = 2100) -> Path:
    """A calibration text; a byte is a token of the tiny models."""
    path = folder / "text.txt"
    words = [WORDS[(i * i + i // 3) % len(WORDS)] for i in range(tokens)]
    path.write_text(" ".join(words)[:tokens])
    return path


def built(source: Path, out: Path, text: Path, **options: Any) -> dict[str, Any]:
    """What build.json says of a build."""
    build(source, out, Options(**options), text, lambda *_: None)
    told: dict[str, Any] = json.loads((out / "build.json").read_text())
    return told


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Every file of an artefact."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}
