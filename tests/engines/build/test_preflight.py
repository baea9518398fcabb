"""What TensorRT-LLM would load silently wrong is refused, each with its reason."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engines.build.preflight import faults, main
from tests.engines.build.spoilt import JSON_FAULTS, LAYER, TENSOR_FAULTS, Tensors
from tests.engines.build.tiny import MODELS, built, model, text


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


@pytest.mark.parametrize("name", TENSOR_FAULTS)
def test_a_wrong_tensor_is_found(name: str, artefact: Path) -> None:
    """By its name, with the reason."""
    change, where, reason = TENSOR_FAULTS[name]
    change_tensors(artefact, change)
    found = {fault.where: fault.reason for fault in faults(artefact)}
    assert reason in found[where]


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


@pytest.mark.parametrize("name", ["config.json", "hf_quant_config.json", "model.safetensors"])
def test_what_is_no_file_is_waited_for_by_nobody(name: str, artefact: Path) -> None:
    (artefact / name).unlink()
    os.mkfifo(artefact / name)
    assert faults(artefact, is_quick=True)


def test_layers_without_tensors_are_one_fault(artefact: Path) -> None:
    change_json(artefact, "config.json", lambda told: told.update(num_hidden_layers=10**12))
    assert "1000000000000" in str(faults(artefact, is_quick=True))
