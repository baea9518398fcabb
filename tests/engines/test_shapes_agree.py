"""Whoever builds an artefact and whoever serves it read one shape, and refuse the same models."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from engines.build.shape import UnsuitableModel, shape_of
from engines.embedded.config import ModelConfig, UnsupportedError
from engines.families import Sizes

BASE: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rope_theta": 10_000.0,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
REFUSED: list[dict[str, Any]] = [
    {"model_type": "mixtral"},
    {"model_type": None},
    {"hidden_act": "gelu"},
    {"partial_rotary_factor": 0.5},
    {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
    {"layer_types": ["full_attention", "sliding_attention"]},
    {"use_sliding_window": True},
    {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
    {"rope_scaling": LLAMA3 | {"low_freq_factor": 9.0}},
    {"rope_scaling": LLAMA3, "rope_parameters": "llama3"},
    {"rope_theta": None},
    {"num_attention_heads": 0},
    {"num_attention_heads": 0, "head_dim": 16},
    {"num_key_value_heads": 3},
    {"head_dim": 7},
    {"vocab_size": -1},
    {"rms_norm_eps": float("inf")},
    {"num_hidden_layers": float("inf")},
    {"max_position_embeddings": "many"},
    {"num_hidden_layers": 2.5},
    {"num_hidden_layers": True},
    {"hidden_size": "64"},
    {"model_type": ["llama"]},
]
TAKEN: list[dict[str, Any]] = [
    {},
    {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 8},
    {"model_type": "qwen3"},
    {"model_type": "qwen3", "head_dim": 24},
    {"rope_scaling": LLAMA3},
    {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5.0}},
]


def _folder(place: Path, changed: dict[str, Any]) -> Path:
    told = {name: value for name, value in (BASE | changed).items() if value is not None}
    (place / "config.json").write_text(json.dumps(told))
    return place


@pytest.mark.parametrize("changed", REFUSED, ids=json.dumps)
def test_both_refuse(changed: dict[str, Any], tmp_path: Path) -> None:
    folder = _folder(tmp_path, changed)
    with pytest.raises(UnsuitableModel, match=r"config\.json"):
        shape_of(folder)
    with pytest.raises(UnsupportedError, match=r"config\.json"):
        ModelConfig.from_folder(folder)


@pytest.mark.parametrize("changed", TAKEN, ids=json.dumps)
def test_both_read_the_same_sizes(changed: dict[str, Any], tmp_path: Path) -> None:
    folder = _folder(tmp_path, changed)
    built, served = shape_of(folder), ModelConfig.from_folder(folder)
    for field in fields(Sizes):
        assert getattr(built, field.name) == getattr(served, field.name), field.name
    assert built.has_head_norms == served.qk_norm


def test_a_model_with_a_bias_that_we_do_not_serve_may_be_built(tmp_path: Path) -> None:
    """TensorRT-LLM serves such a one."""
    folder = _folder(tmp_path, {"attention_bias": True})
    assert shape_of(folder).family == "llama"
    with pytest.raises(UnsupportedError, match="attention_bias"):
        ModelConfig.from_folder(folder)
