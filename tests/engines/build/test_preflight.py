"""What TensorRT-LLM would load silently wrong is refused, each with its reason."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engines.build.preflight import faults, main
from tests.engines.build.tiny import MODELS, built, model, text

Tensors = dict[str, torch.Tensor]
LAYER = "model.layers.1."
ATTENTION = f"{LAYER}self_attn."


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artefacts")
    built(model("llama", folder / "source"), folder / "good", text(folder))
    return folder / "good"


@pytest.fixture
def artefact(good: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(good, tmp_path / "artefact"))


def change_tensors(folder: Path, change: Callable[[Tensors], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def change_json(folder: Path, name: str, change: Callable[[dict[str, Any]], Any]) -> None:
    told = json.loads((folder / name).read_text())
    change(told)
    (folder / name).write_text(json.dumps(told))


def factors(names: str, values: list[float]) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        for name, value in zip(names.split(), values, strict=True):
            tensors[f"{LAYER}{name}.pre_quant_scale"] = torch.full((64,), value).bfloat16()

    return change


TENSOR_FAULTS: dict[str, tuple[Callable[[Tensors], Any], str, str]] = {
    "unfolded, shared": (
        factors("self_attn.q_proj self_attn.k_proj self_attn.v_proj", [2, 2, 2]),
        f"{ATTENTION}q_proj.pre_quant_scale",
        "not folded into the norm",
    ),
    "unfolded, each its own": (
        factors("mlp.gate_proj mlp.up_proj", [2, 3]),
        f"{LAYER}mlp.up_proj.pre_quant_scale",
        "gate_proj, up_proj don't share one",
    ),
    "unfolded, one of three": (
        factors("self_attn.k_proj", [2]),
        f"{ATTENTION}k_proj.pre_quant_scale",
        "q_proj, k_proj, v_proj don't share one",
    ),
    "no factors": (
        lambda t: t.pop(f"{ATTENTION}o_proj.pre_quant_scale"),
        f"{ATTENTION}o_proj.pre_quant_scale",
        "is missing",
    ),
    "no scales": (
        lambda t: t.pop(f"{LAYER}mlp.up_proj.weight_scale"),
        f"{LAYER}mlp.up_proj.weight_scale",
        "is missing",
    ),
    "scales in bf16": (
        lambda t: t.update(
            {f"{ATTENTION}v_proj.weight_scale": t[f"{ATTENTION}v_proj.weight_scale"].bfloat16()}
        ),
        f"{ATTENTION}v_proj.weight_scale",
        "is BF16 (32, 1) instead of F32 (32, 1)",
    ),
    "not packed": (
        lambda t: t.update({f"{ATTENTION}q_proj.weight": torch.zeros(64, 64).bfloat16()}),
        f"{ATTENTION}q_proj.weight",
        "is BF16 (64, 64) instead of U8 (32, 64)",
    ),
    "a norm is missing": (
        lambda t: t.pop(f"{LAYER}input_layernorm.weight"),
        f"{LAYER}input_layernorm.weight",
        "is missing",
    ),
    "K over 448": (
        lambda t: t.update({f"{ATTENTION}k_proj.k_scale": torch.tensor(1.25)}),
        f"{ATTENTION}k_proj.k_scale",
        "K reaches 560",
    ),
    "a head that is tied": (
        lambda t: t.update({"lm_head.weight": torch.zeros(300, 64).bfloat16()}),
        "lm_head.weight",
        "tie_word_embeddings is true",
    ),
    "a NaN among scales": (
        lambda t: t[f"{LAYER}mlp.up_proj.weight_scale"].view(-1)[5:6].fill_(math.nan),
        f"{LAYER}mlp.up_proj.weight_scale",
        "holds a NaN or an infinity",
    ),
    "an infinite embedding": (
        lambda t: t["model.embed_tokens.weight"][299, 63:].fill_(-math.inf),
        "model.embed_tokens.weight",
        "holds a NaN or an infinity",
    ),
    "a factor of 0": (
        lambda t: t[f"{LAYER}mlp.down_proj.pre_quant_scale"][7:8].fill_(0),
        f"{LAYER}mlp.down_proj.pre_quant_scale",
        "is 0 somewhere",
    ),
    "K's scale alone": (
        lambda t: t.pop(f"{ATTENTION}v_proj.v_scale"),
        f"{ATTENTION}v_proj.v_scale",
        "all of them, or none",
    ),
    "a scale below 0": (
        lambda t: t.update({f"{ATTENTION}v_proj.v_scale": torch.tensor(-0.5)}),
        f"{ATTENTION}v_proj.v_scale",
        "is -0.5 instead of a number above 0",
    ),
    "a bias that Llama has none of": (
        lambda t: t.update({f"{ATTENTION}q_proj.bias": torch.zeros(64).bfloat16()}),
        f"{ATTENTION}q_proj.bias",
        "has no place in this model",
    ),
    "a zero point's tensor": (
        lambda t: t.update({f"{ATTENTION}q_proj.weight_zero_point": torch.zeros(64, 1)}),
        f"{ATTENTION}q_proj.weight_zero_point",
        "has no place in this model",
    ),
    "a layer too many": (
        lambda t: t.update({"model.layers.3.input_layernorm.weight": torch.ones(64).bfloat16()}),
        "model.layers.3.input_layernorm.weight",
        "has no place in this model",
    ),
    "a scale that is none": (
        lambda t: t.update({f"{ATTENTION}v_proj.v_scale": torch.zeros(2)}),
        f"{ATTENTION}v_proj.v_scale",
        "instead of one F32 number",
    ),
}


@pytest.mark.parametrize("name", TENSOR_FAULTS)
def test_a_wrong_tensor_is_found(name: str, artefact: Path) -> None:
    """By its name, with the reason."""
    change, where, reason = TENSOR_FAULTS[name]
    change_tensors(artefact, change)
    found = {fault.where: fault.reason for fault in faults(artefact)}
    assert reason in found[where]


JSON_FAULTS: dict[str, tuple[str, Callable[[dict[str, Any]], Any], str]] = {
    "rope_theta nested only": (
        "config.json",
        lambda c: c.pop("rope_theta"),
        "TensorRT-LLM and transformers 4 would take 10000",
    ),
    "two rope_thetas": (
        "config.json",
        lambda c: c["rope_parameters"].update(rope_theta=5.0),
        "another rope_theta",
    ),
    "no quantization_config": (
        "config.json",
        lambda c: c.pop("quantization_config"),
        "quantization_config: is missing",
    ),
    "a head that should be there": (
        "config.json",
        lambda c: c.update(tie_word_embeddings=False),
        "lm_head.weight: is missing",
    ),
    "a group of 32": (
        "hf_quant_config.json",
        lambda c: c["quantization"].update(group_size=32),
        "32: TensorRT-LLM's kernels take 64 or 128",
    ),
    "a group that doesn't divide": (
        "hf_quant_config.json",
        lambda c: c["quantization"].update(group_size=128),
        "128 doesn't divide self_attn.q_proj's 64",
    ),
    "a zero point": (
        "hf_quant_config.json",
        lambda c: c["quantization"].update(has_zero_point=True),
        "zero point",
    ),
    "another algorithm": (
        "hf_quant_config.json",
        lambda c: c["quantization"].update(quant_algo="NVFP4"),
        "'NVFP4' is not read",
    ),
    "no factors said": (
        "hf_quant_config.json",
        lambda c: c["quantization"].update(pre_quant_scale=False),
        "must be true",
    ),
    "KV scales unread": (
        "hf_quant_config.json",
        lambda c: c["quantization"].update(kv_cache_quant_algo=None),
        "isn't FP8: it would be unread",
    ),
    "a group that is no whole number": (
        "hf_quant_config.json",
        lambda c: c["quantization"].update(group_size=64.0),
        "64.0: TensorRT-LLM's kernels take 64 or 128",
    ),
    "another cache": (
        "hf_quant_config.json",
        lambda c: c["quantization"].update(kv_cache_quant_algo="NVFP4"),
        "'NVFP4' is not read: only FP8 is",
    ),
    "a head in 4 bits": (
        "hf_quant_config.json",
        lambda c: c["quantization"].update(exclude_modules=[]),
        "lacks lm_head",
    ),
    "a layer that isn't in 4 bits": (
        "hf_quant_config.json",
        lambda c: c["quantization"]["exclude_modules"].append("*layers.2.mlp*"),
        "names model.layers.2.mlp.gate_proj",
    ),
    "two algorithms": (
        "config.json",
        lambda c: c["quantization_config"].update(quant_algo="FP8"),
        "says quant_algo 'FP8'",
    ),
    "a cache that one file says": (
        "config.json",
        lambda c: c.update(quantization_config=["W4A16_AWQ"]),
        "is no object",
    ),
    "rope scaling nested only": (
        "config.json",
        lambda c: c["rope_parameters"].update(rope_type="llama3", factor=8.0),
        "isn't what rope_parameters says",
    ),
    "rope scaling that is none": (
        "config.json",
        lambda c: c.update(rope_scaling="llama3"),
        "rope_scaling is no object",
    ),
    "no heads": (
        "config.json",
        lambda c: c.update(num_attention_heads=0, head_dim=None),
        "config.json",
    ),
    "endless layers": (
        "config.json",
        lambda c: c.update(num_hidden_layers=math.inf),
        "missing or malformed",
    ),
    "an eps below 0": ("config.json", lambda c: c.update(rms_norm_eps=-1e-5), "rms_norm_eps is"),
    "fewer layers": (
        "config.json",
        lambda c: c.update(num_hidden_layers=2),
        "model.layers.2.input_layernorm.weight: has no place",
    ),
    "digests that are none": (
        "build.json",
        lambda c: c.update(files=["config.json"]),
        "files: is no object",
    ),
    "no algorithm at all": (
        "hf_quant_config.json",
        lambda c: c["quantization"].pop("quant_algo"),
        "has no `quantization.quant_algo`",
    ),
}


@pytest.mark.parametrize("name", JSON_FAULTS)
def test_a_wrong_word_is_found(name: str, artefact: Path) -> None:
    """In either of the two files that say how weights are to be read."""
    file, change, reason = JSON_FAULTS[name]
    change_json(artefact, file, change)
    assert any(reason in str(fault) for fault in faults(artefact)), faults(artefact)


def test_packed_weights_without_their_description_are_found(artefact: Path) -> None:
    """They would be taken for bytes."""
    (artefact / "hf_quant_config.json").unlink()
    assert any("weights are in 4 bits" in str(fault) for fault in faults(artefact))


def test_a_file_that_is_cut_off_is_one_fault(artefact: Path) -> None:
    """Not a traceback."""
    path = artefact / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-64])
    (fault,) = faults(artefact)
    assert "cut off" in str(fault)


def test_every_fault_is_told_at_once(artefact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line each, exit status 1; 0 and nothing for a good one."""
    assert main([str(artefact)]) == 0
    change_tensors(artefact, TENSOR_FAULTS["no factors"][0])
    change_json(artefact, "config.json", JSON_FAULTS["rope_theta nested only"][1])
    capsys.readouterr()
    assert main([str(artefact)]) == 1
    found = capsys.readouterr().err.splitlines()
    assert len(found) == 4
    assert sum("build.json tells of another SHA-256" in line for line in found) == 2


def test_damaged_and_missing_files_are_found(artefact: Path) -> None:
    """By the digests in build.json; a folder of ModelOpt's has none."""
    (artefact / "tokenizer_config.json").write_text("{ }")
    (artefact / "tokenizer.json").unlink()
    assert {fault.where for fault in faults(artefact)} == {
        "tokenizer.json",
        "tokenizer_config.json",
    }
    (artefact / "build.json").unlink()
    assert faults(artefact) == []


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("options", [{"weights": "bf16"}, {"kv": "bf16"}], ids=str)
def test_no_good_one_is_refused(name: str, options: dict[str, str], tmp_path: Path) -> None:
    """Of any family; nor one with scales below 0, which are legal, or without KV scales."""
    built(model(name, tmp_path / "source"), tmp_path / "out", text(tmp_path), **options)
    assert faults(tmp_path / "out") == []


def test_scales_may_be_negative_and_kv_scales_may_be_absent(artefact: Path) -> None:
    """ModelOpt's "cast" mode stores none; a scale and its nibbles may both change signs."""

    def change(tensors: Tensors) -> None:
        tensors[f"{LAYER}mlp.up_proj.weight_scale"].neg_()
        for name in [name for name in tensors if name.endswith(("k_scale", "v_scale"))]:
            del tensors[name]

    change_tensors(artefact, change)
    (artefact / "build.json").unlink()
    assert faults(artefact) == []


def test_a_tensor_in_two_files_is_found(artefact: Path) -> None:
    """Who reads them all takes either."""
    save_file({"model.norm.weight": torch.ones(64).bfloat16()}, artefact / "z.safetensors")
    (fault,) = faults(artefact)
    assert "'model.norm.weight' is in model.safetensors and in z.safetensors" in fault.reason


@pytest.mark.parametrize(
    "header",
    [b'"text"', b"[]", b"[" * 9000, b'{"a": 3}', b"{"]
    + [
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": %s}}' % at
        for at in (b"[0.0, 4]", b"3")
    ],
)
def test_a_header_that_is_none_is_one_fault(artefact: Path, header: bytes) -> None:
    """Whatever stands there."""
    content = len(header).to_bytes(8, "little") + header + bytes(8)
    (artefact / "model.safetensors").write_bytes(content)
    (fault,) = faults(artefact)
    assert "cannot read" in str(fault)
