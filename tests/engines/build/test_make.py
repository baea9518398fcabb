"""A whole build: what readers find, and that it is whole, repeatable, and goes on when killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engines.build import make
from engines.build.make import main
from engines.build.parts import Parts
from engines.build.plan import BuildError, Options
from engines.build.preflight import faults
from engines.embedded.checkpoint import Checkpoint, Tensor
from engines.embedded.config import ModelConfig
from engines.embedded.int4 import Int4
from tests.engines.build.tiny import MODELS, built, bytes_of, model, text


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model("qwen2", tmp_path_factory.mktemp("source") / "qwen2")


@pytest.mark.parametrize("name", MODELS)
def test_every_family_is_built_and_read(name: str, tmp_path: Path) -> None:
    """Our reader finds matrices in 4 bits, close to the source's; the preflight finds no fault."""
    source = model(name, tmp_path / "source")
    told = built(source, tmp_path / "out", text(tmp_path))
    assert faults(tmp_path / "out") == []
    assert ModelConfig.from_folder(tmp_path / "out") == ModelConfig.from_folder(source)
    both = Checkpoint(source), Checkpoint(tmp_path / "out")
    assert isinstance(both[1].matrix("model.layers.2.mlp.down_proj", 64, 128), Int4)
    gate = ("model.layers.1.mlp.gate_proj", 128, 64)
    norms = [c.vector("model.layers.1.post_attention_layernorm.weight", 64) for c in both]
    old, new = (c.matrix(*gate) for c in both)
    assert isinstance(old, Tensor)
    assert isinstance(new, Int4)
    exact, rounded = old.float32 * norms[0], new.float32() * norms[1]
    assert np.linalg.norm(exact - rounded) < 0.25 * np.linalg.norm(exact)
    assert told["sizes"]["ratio"] < 0.32  # small matrices have large factors
    assert told["kv"]["unit_scale"]["fits"]
    assert len(told["kv"]["layers"]) == 3


def test_the_artefact_says_what_it_is(source: Path, tmp_path: Path) -> None:
    """The keys of ModelOpt's checkpoint, both places of rope_theta, and the tokenizer as it was."""
    built(source, tmp_path / "out", text(tmp_path))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 10_000.0
    assert config["quantization_config"]["quant_method"] == "modelopt"
    told = json.loads((tmp_path / "out" / "hf_quant_config.json").read_text())["quantization"]
    assert told == {
        "quant_algo": "W4A16_AWQ",
        "kv_cache_quant_algo": "FP8",
        "group_size": 64,
        "has_zero_point": False,
        "pre_quant_scale": True,
        "exclude_modules": ["lm_head", "model.embed_tokens"],
    }
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    record = json.loads((tmp_path / "out" / "build.json").read_text())
    assert record["files"].keys() == {p.name for p in (tmp_path / "out").iterdir()} - {"build.json"}


def test_bf16_weights_get_kv_scales_only(source: Path, tmp_path: Path) -> None:
    """Matrices as they were; the scales of each layer's K and V."""
    built(source, tmp_path / "out", text(tmp_path), weights="bf16")
    before = load_file(source / "model.safetensors")
    after = load_file(tmp_path / "out" / "model.safetensors")
    scales = {name for name in after if name.endswith(("k_scale", "v_scale"))}
    assert len(scales) == 6
    assert after.keys() - scales == before.keys() - {"lm_head.weight"}
    for name in after.keys() - scales:
        assert torch.equal(after[name], before[name].bfloat16()), name
    assert faults(tmp_path / "out") == []


def test_kv_in_bf16_has_no_scales(source: Path, tmp_path: Path) -> None:
    """And hf_quant_config.json says so."""
    built(source, tmp_path / "out", text(tmp_path), kv="bf16")
    assert not [n for n in load_file(tmp_path / "out" / "model.safetensors") if "k_scale" in n]
    told = json.loads((tmp_path / "out" / "hf_quant_config.json").read_text())["quantization"]
    assert told["kv_cache_quant_algo"] is None
    assert faults(tmp_path / "out") == []


def test_the_same_inputs_give_the_same_bytes(source: Path, tmp_path: Path) -> None:
    """Every file, build.json included."""
    for name in ("one", "two"):
        built(source, tmp_path / name, text(tmp_path))
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "two")


class Killed(BaseException):
    """What a process doesn't survive."""


def kill_at(layer: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The build dies when it would keep this part; returns the parts that are kept."""
    kept: list[str] = []
    put = Parts.put

    def dying(self: Parts, name: str, tensors: dict[str, Any]) -> None:
        if name == layer:
            raise Killed
        kept.append(name)
        put(self, name, tensors)

    monkeypatch.setattr(Parts, "put", dying)
    return kept


def built_until(layer: str, source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that dies at this layer."""
    with monkeypatch.context() as patch:
        kill_at(layer, patch)
        with pytest.raises(Killed):
            built(source, folder / "out", text(folder))


def test_a_killed_build_goes_on_where_it_was(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layers that were finished aren't fitted again, and the bytes are those of one run."""
    whole = built(source, tmp_path / "whole", text(tmp_path))
    built_until("layer-0002", source, tmp_path, monkeypatch)
    assert not (tmp_path / "out").exists()
    kept = kill_at("never", monkeypatch)
    steps: list[str] = []
    out = tmp_path / "out"
    make.build(source, out, Options(), text(tmp_path), lambda step, *_: steps.append(step))
    assert json.loads((out / "build.json").read_text()) == whole
    assert "going on, 2 of 3 layers are kept" in steps
    assert kept == ["layer-0002", "kv"]
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "whole")
    assert {path.name for path in tmp_path.iterdir() if "part" in path.name} == set()


def test_parts_that_were_damaged_are_made_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part's name has its digest in it."""
    whole = built(source, tmp_path / "whole", text(tmp_path))
    built_until("layer-0002", source, tmp_path, monkeypatch)
    (part,) = (tmp_path / ".out.parts").glob("layer-0001-*")
    content = bytearray(part.read_bytes())
    content[-100] ^= 1
    part.write_bytes(content)
    kept = kill_at("never", monkeypatch)
    assert built(source, tmp_path / "out", text(tmp_path)) == whole
    assert "layer-0001" in kept


def test_parts_of_another_plan_are_thrown_away(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another calibration text is another plan."""
    built_until("layer-0001", source, tmp_path, monkeypatch)
    kept = kill_at("never", monkeypatch)
    built(source, tmp_path / "out", text(tmp_path, tokens=2600))
    assert kept == ["ends", "layer-0000", "layer-0001", "layer-0002", "kv"]


def test_a_built_artefact_is_not_built_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan's key is in build.json."""
    built(source, tmp_path / "out", text(tmp_path))
    monkeypatch.setattr(make, "Builder", None)
    built(source, tmp_path / "out", text(tmp_path))


def test_a_foreign_folder_is_never_replaced(source: Path, tmp_path: Path) -> None:
    """A wrong --out costs nobody their files."""
    (tmp_path / "precious").mkdir()
    with pytest.raises(BuildError, match="another --out"):
        built(source, tmp_path / "precious", text(tmp_path))
    assert (tmp_path / "precious").is_dir()


def test_k_that_e4m3_would_cut_is_refused(source: Path, tmp_path: Path) -> None:
    """TensorRT-LLM has no other scale than 1. BF16 pages hold it."""
    large = model("qwen2", tmp_path / "large")
    tensors = load_file(large / "model.safetensors")
    tensors["model.layers.1.self_attn.k_proj.bias"][3] = 700
    save_file(tensors, large / "model.safetensors")
    with pytest.raises(BuildError, match=r"layer 1: K reaches [67]\d\d .* --kv bf16"):
        built(large, tmp_path / "out", text(tmp_path))
    assert not [path for path in tmp_path.iterdir() if "out" in path.name and path.is_dir()]
    told = built(large, tmp_path / "out", text(tmp_path), kv="bf16")
    assert told["kv"]["unit_scale"]["fits"] is False


@pytest.mark.parametrize("weights", ["int4-awq", "bf16"])
def test_a_source_that_overflows_is_refused(source: Path, tmp_path: Path, weights: str) -> None:
    """Its answers would be noise, and its figures none."""
    broken = model("qwen2", tmp_path / "broken")
    tensors = load_file(broken / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"] *= 1e38
    save_file(tensors, broken / "model.safetensors")
    with pytest.raises(BuildError, match="layer 1 gives numbers that aren't finite"):
        built(broken, tmp_path / "out", text(tmp_path), weights=weights)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken", "text.txt"]


def test_sums_that_overflow_are_told_as_that(source: Path, tmp_path: Path) -> None:
    """Not in the words of a library of linear algebra."""
    broken = model("llama", tmp_path / "broken")
    tensors = load_file(broken / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"].fill_(1e38)
    save_file(tensors, broken / "model.safetensors")
    with pytest.raises(BuildError, match="layer 1 gives numbers that aren't finite"):
        built(broken, tmp_path / "out", text(tmp_path))


@pytest.mark.parametrize(
    ("group", "said"), [(["--group", "128"], "don't divide the 64 inputs"), ([], "needs 1024")]
)
def test_the_command_says_what_is_wrong_in_one_sentence(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], group: list[str], said: str
) -> None:
    """Exit status 1."""
    short = text(tmp_path, tokens=600)
    asked = [str(source), "--out", str(tmp_path / "out"), "--calibration", str(short), *group]
    assert main(asked) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
