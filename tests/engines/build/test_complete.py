"""A source that isn't the model it says it is, is refused before anything is computed."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engines.build.make import main
from tests.engines.build.tiny import BASE, MODELS, model, text

Tensors = dict[str, torch.Tensor]
LAYER = "model.layers.2."


def asked(source: Path, place: Path) -> list[str]:
    text(place)
    return [str(source), "--out", str(place / "out"), "--calibration", str(place / "text.txt")]


SPOILT: dict[str, tuple[Callable[[Tensors], Any], str]] = {
    "a file is missing": (
        lambda t: [t.pop(name) for name in list(t) if name.startswith(LAYER)],
        "has no tensor 'model.layers.2.input_layernorm.weight' and 8 others",
    ),
    "a layer too many": (
        lambda t: t.update({"model.layers.3.input_layernorm.weight": torch.ones(64)}),
        "has no place for it",
    ),
    "the norms of another family": (
        lambda t: t.update({f"{LAYER}self_attn.q_norm.weight": torch.ones(16)}),
        "'model.layers.2.self_attn.q_norm.weight', and the model",
    ),
    "a bias that no one reads": (
        lambda t: t.update({f"{LAYER}self_attn.o_proj.bias": torch.ones(64)}),
        "has no place for it",
    ),
    "misshapen": (
        lambda t: t.update({f"{LAYER}mlp.up_proj.weight": torch.ones(64, 64)}),
        "is (64, 64) instead of (128, 64)",
    ),
    "in double precision": (
        lambda t: t.update({"model.norm.weight": torch.ones(64).double()}),
        "is F64; BF16, F16 or F32 is needed",
    ),
    "not a number": (
        lambda t: t[f"{LAYER}mlp.up_proj.weight"].view(-1)[:1].fill_(math.nan),
        "holds a NaN or an infinity",
    ),
    "beyond bf16": (
        lambda t: t.update({"model.norm.weight": torch.full((64,), 3.4028e38)}),
        "'model.norm.weight' holds a number too large for bf16",
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_source_that_is_none_is_told_in_one_sentence(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And leaves nothing: the same source would be refused again."""
    change, said = SPOILT[name]
    source = model("llama", tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    change(tensors)
    save_file(tensors, source / "model.safetensors")
    assert main(asked(source, tmp_path)) == 1
    assert said in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "text.txt"]


def test_biases_that_a_family_has_must_be_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Llama that is called a Qwen2 would be built, and refused when it is served."""
    source = model("llama", tmp_path / "source")
    told = BASE | MODELS["qwen2"]
    (source / "config.json").write_text(json.dumps(told))
    assert main(asked(source, tmp_path)) == 1
    assert "has no tensor 'model.layers.0.self_attn.q_proj.bias'" in capsys.readouterr().err


def test_what_others_leave_in_their_files_is_no_fault(tmp_path: Path) -> None:
    """A copy of a tied embedding, and buffers that everybody computes anew."""
    source = model("llama", tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors[f"{LAYER}self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    save_file(tensors, source / "model.safetensors")
    assert main(asked(source, tmp_path)) == 0


@pytest.mark.parametrize("name", ["model.safetensors", "model-2.safetensors"])
@pytest.mark.parametrize("kind", ["a pipe", "a device", "a folder", "a link to nothing"])
def test_what_is_no_file_is_read_by_nobody(
    name: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipe would be waited for, for ever, and a device has no end."""
    source = model("llama", tmp_path / "source")
    odd = source / name
    odd.unlink(missing_ok=True)
    if kind == "a pipe":
        os.mkfifo(odd)
    elif kind == "a folder":
        odd.mkdir()
    else:
        odd.symlink_to("/dev/zero" if kind == "a device" else "/nonexistent")
    assert main(asked(source, tmp_path)) == 1
    assert str(odd) in capsys.readouterr().err
