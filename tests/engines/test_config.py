"""What can be served, and which options there are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines.api import EngineSpec
from engines.embedded.config import EngineConfig, ModelConfig, UnsupportedError
from engines.embedded.engine import create
from tests.engines.conftest import TINY_CONFIG


def folder_with(folder: Path, **changes: Any) -> Path:
    config = {k: v for k, v in (TINY_CONFIG | changes).items() if v is not None}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_the_packaged_model_is_read_as_it_is(model_dir: Path) -> None:
    """Shape, limits and end token of the default model."""
    config = ModelConfig.from_folder(model_dir)
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (30, 9, 3)
    assert config.max_context == 8192
    assert config.eos_token_ids == {2}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "mistral"}, "'mistral'"),
        ({"model_type": None}, "None"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"attention_bias": True}, "attention_bias"),
        ({"rope_scaling": {"type": "linear"}}, "'linear'"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"rope_theta": None}, "rope_theta"),
        ({"vocab_size": "many"}, "many"),
        ({"intermediate_size": float("inf")}, "intermediate_size: inf"),
    ],
)
def test_another_family_is_refused_by_what_was_found(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    """The error names the key or the value at fault."""
    with pytest.raises(UnsupportedError, match=words):
        ModelConfig.from_folder(folder_with(tmp_path, **changes))


def test_rope_theta_is_found_in_both_places(tmp_path: Path) -> None:
    """At top level, or inside rope_parameters as newer writers have it."""
    nested = {"rope_theta": None, "rope_parameters": {"rope_theta": 5.0, "rope_type": "default"}}
    assert ModelConfig.from_folder(folder_with(tmp_path, **nested)).rope_theta == 5.0


@pytest.mark.parametrize(("eos", "ids"), [(2, {2}), ([2, 5], {2, 5})])
def test_generation_config_overrides_the_end_tokens(
    tmp_path: Path, eos: int | list[int], ids: set[int]
) -> None:
    """One id or several."""
    folder_with(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    assert ModelConfig.from_folder(tmp_path).eos_token_ids == ids


def test_a_missing_folder_is_a_clear_error(tmp_path: Path) -> None:
    """It names the file."""
    with pytest.raises(UnsupportedError, match=r"config\.json: No such file or directory$"):
        create(EngineSpec("x", str(tmp_path / "nowhere")))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"page_sise": 16}, "unknown engine option 'page_sise'"),
        ({"page_size": 0}, "'page_size' is too small"),
        ({"page_size": "16"}, "'page_size' must be int"),
        ({"prefix_cache": 1}, "'prefix_cache' must be bool"),
        ({"threads": True}, "'threads' must be int"),
        ({"dtype": "float16"}, "bfloat16, float32"),
        ({"integrity": "on"}, "enforce, observe, off"),
        ({"max_running": 600}, "'max_running'"),
    ],
)
def test_options_are_checked_by_name(options: dict[str, Any], words: str) -> None:
    """Unknown, mistyped and impossible ones."""
    with pytest.raises(UnsupportedError, match=words):
        EngineConfig.from_options(options)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"kv_memory_bytes": 10}, "kv_memory_bytes"), ({"max_context": 1000}, "the model's 256")],
)
def test_options_must_suit_the_model(tiny_dir: Path, options: dict[str, Any], words: str) -> None:
    """Too little memory for a page, or more context than the model has."""
    with pytest.raises(UnsupportedError, match=words):
        create(EngineSpec("tiny", str(tiny_dir), options))


def test_a_missing_tensor_is_named(tiny_dir: Path, tmp_path: Path) -> None:
    """A checkpoint that doesn't fit its configuration is refused at load."""
    for path in tiny_dir.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    folder_with(tmp_path, num_hidden_layers=3)
    with pytest.raises(UnsupportedError, match=r"model\.layers\.2"):
        create(EngineSpec("tiny", str(tmp_path)))


def test_a_misshapen_tensor_is_named(tiny_dir: Path, tmp_path: Path) -> None:
    """With both shapes."""
    for path in tiny_dir.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    folder_with(tmp_path, vocab_size=301)
    with pytest.raises(UnsupportedError, match=r"\(300, 64\) instead of \(301, 64\)"):
        create(EngineSpec("tiny", str(tmp_path)))
