"""Our writer against ModelOpt's export: the same tensors, the same words about them.

What it exported is recorded (tests/engines/build/manifest.py). BULKHEAD_MODELOPT_PYTHON names a
Python that has it, for the tests that really run it.
"""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from engines.build.preflight import faults
from engines.embedded.checkpoint import Checkpoint
from engines.embedded.int4 import Int4
from tests.engines.build.manifest import RECORDED, exported, manifest
from tests.engines.build.tiny import built, model, text

RECORD: dict[str, dict[str, Any]] = json.loads(RECORDED.read_text())
PYTHON = os.environ.get("BULKHEAD_MODELOPT_PYTHON", "")


@pytest.mark.parametrize("case", RECORD)
def test_our_writer_writes_what_modelopt_exports(case: str, tmp_path: Path) -> None:
    """Names, dtypes, shapes; every key of hf_quant_config.json and of quantization_config."""
    name, weights = case.split()
    source = model(name, tmp_path / "source", num_hidden_layers=2)
    built(source, tmp_path / "out", text(tmp_path), weights=weights)
    assert manifest(tmp_path / "out") == RECORD[case]


def test_the_extra_can_be_installed_beside_us() -> None:
    """transformers below 5.15, which ModelOpt needs, takes tokenizers up to 0.22.2 only."""
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    ours = {one.name: one for one in map(Requirement, project["dependencies"])}
    assert "0.22.2" in ours["tokenizers"].specifier


# It is an extra of gigabytes, and CI allows no skip: who has it asks for these.
if PYTHON:

    @pytest.mark.parametrize("case", RECORD)
    def test_the_record_is_what_modelopt_exports(case: str, tmp_path: Path) -> None:
        """As of today's ModelOpt."""
        name, weights = case.split()
        source = model(name, tmp_path / "source", num_hidden_layers=2)
        assert exported(PYTHON, source, tmp_path / "out", weights) == RECORD[case]

    def test_what_modelopt_built_is_read_and_has_no_fault(tmp_path: Path) -> None:
        """Through our own command, by our reader and our preflight."""
        source, out = model("llama", tmp_path / "source"), tmp_path / "out"
        command = [PYTHON, "-m", "engines.build.make", str(source), "--out", str(out)]
        command += ["--quantizer", "modelopt", "--calibration", str(text(tmp_path))]
        subprocess.run(command, check=True, capture_output=True)
        assert faults(out) == []
        found = Checkpoint(out).matrix("model.layers.1.self_attn.o_proj", 64, 64)
        assert isinstance(found, Int4)
        assert found.factors is not None
        told = json.loads((out / "build.json").read_text())
        assert told["kv"]["unit_scale"]["fits"]

    @pytest.mark.parametrize("kv", ["fp8", "bf16"])
    @pytest.mark.parametrize("weights", ["int4-awq", "bf16"])
    def test_what_modelopt_built_is_measured_as_ours_is(
        weights: str, kv: str, tmp_path: Path
    ) -> None:
        """Its own export tells of K and V with FP8 alone, and of what rounding costs never."""
        source, out = model("qwen2", tmp_path / "source"), tmp_path / "out"
        calibration = text(tmp_path, tokens=6000)
        command = [PYTHON, "-m", "engines.build.make", str(source), "--out", str(out)]
        command += ["--quantizer", "modelopt", "--calibration", str(calibration)]
        subprocess.run([*command, "--weights", weights, "--kv", kv], check=True)
        told = json.loads((out / "build.json").read_text())
        ours = built(source, tmp_path / "ours", calibration, weights=weights, kv=kv)
        assert told["quality"].keys() == ours["quality"].keys()
        for one, other in zip(told["kv"]["layers"], ours["kv"]["layers"], strict=True):
            for part in "kv":
                assert one[part]["amax"] == pytest.approx(other[part]["amax"], rel=0.2)
                assert 0 <= one[part]["below_smallest_normal"] < 0.5
