"""A checkpoint built for an FP8 cache is served with a BF16 one: a folder beside it says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engines.build.preflight import faults
from engines.trtllm import bf16_view, checkpoint
from engines.trtllm.commands import Served
from engines.trtllm.rendered import rendered, write
from engines.trtllm.settings import TrtSettings
from tests.engines.build.tiny import built, model, text

BF16 = TrtSettings(kv_dtype="bf16", guard=False)


@pytest.fixture(scope="module")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artefacts")
    built(model("llama", folder / "source"), folder / "fp8", text(folder), kv="fp8")
    return folder / "fp8"


def laid_out(path: Path, folder: Path) -> Path:
    """What is served of a checkpoint."""
    found = rendered(Served("m", str(path), ("http://127.0.0.1:8000/v1",), BF16), str(folder))
    write(found, folder)
    write(found, folder)  # again: the same
    assert str(folder / "checkpoint") in found.files["command.txt"]
    return folder / "checkpoint"


def test_all_else_is_the_same_and_nothing_says_fp8(artefact: Path, tmp_path: Path) -> None:
    view = laid_out(artefact, tmp_path)
    assert checkpoint.read(artefact).own_kv == "fp8"
    assert checkpoint.read(view).own_kv == "bf16"
    names = {path.name for path in artefact.iterdir()} - {"build.json"}
    assert {path.name for path in view.iterdir()} == names
    for path in map(artefact.joinpath, names):
        same = (view / path.name).read_bytes() == path.read_bytes()
        assert same == (path.name not in ("hf_quant_config.json", "config.json"))
    before = json.loads((artefact / "hf_quant_config.json").read_text())
    after = json.loads((view / "hf_quant_config.json").read_text())
    assert before["quantization"].pop("kv_cache_quant_algo") == "FP8"
    assert before == after


def test_the_preflight_has_nothing_against_it_but_that_its_scales_go_unread(
    artefact: Path, tmp_path: Path
) -> None:
    found = faults(laid_out(artefact, tmp_path))
    assert found
    assert all(fault.where.endswith(("_proj.k_scale", "_proj.v_scale")) for fault in found)
    assert all("unread" in fault.reason for fault in found)


def test_what_says_nothing_of_the_cache_is_served_as_it_is(artefact: Path, tmp_path: Path) -> None:
    assert bf16_view.changed(tmp_path) == {}
    view = laid_out(artefact, tmp_path)
    found = rendered(Served("m", str(view), ("http://127.0.0.1:8000/v1",), BF16), "/elsewhere")
    assert found.links == {}
    assert str(view) in found.files["command.txt"]


def test_the_artefact_is_never_written_to(artefact: Path, tmp_path: Path) -> None:
    """Even where a folder holds links to it from before, under the names of files of ours."""
    before = {path.name: path.read_bytes() for path in artefact.iterdir()}
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "config.json").symlink_to(artefact / "config.json")
    laid_out(artefact, tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "checkpoint").symlink_to(artefact)
    with pytest.raises(OSError, match="behind a link"):
        laid_out(artefact, tmp_path / "other")
    assert {path.name: path.read_bytes() for path in artefact.iterdir()} == before
