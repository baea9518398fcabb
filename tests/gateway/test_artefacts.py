"""Weights of the same source are found by what build.json says of them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from gateway.evaluation.artefacts import relatives


def source(place: Path, name: str = "model", weights: bytes = b"weights") -> Path:
    folder = place / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def built(place: Path, name: str, of: Path, weights: str = "int4-awq") -> Path:
    folder = source(place, name, b"packed")
    files = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(of.iterdir())
    }
    record = {"options": {"weights": weights, "kv": "fp8"}, "source": {"files": files}}
    (folder / "build.json").write_text(json.dumps(record))
    return folder


def test_artefacts_of_a_model_are_found_wherever_they_may_lie(tmp_path: Path) -> None:
    """Beside it, or in the state folder; each once."""
    model = source(tmp_path / "a")
    beside = built(tmp_path / "a", "beside", model)
    elsewhere = built(tmp_path / "b", "elsewhere", model)
    places = [tmp_path / "a", tmp_path / "b", tmp_path / "a", tmp_path / "none"]
    assert relatives(model, places) == [beside, elsewhere]


def test_an_artefact_of_other_weights_is_none_of_it(tmp_path: Path) -> None:
    """A fine-tune has the same configuration, and other numbers."""
    model = source(tmp_path)
    built(tmp_path, "of-another", source(tmp_path, "tuned", b"other weights"))
    assert relatives(model, [tmp_path]) == []


def test_an_artefact_finds_its_source_and_its_siblings(tmp_path: Path) -> None:
    """So that there is something to compare it with."""
    model = source(tmp_path)
    one, other = (built(tmp_path, name, model) for name in ("g128", "g64"))
    source(tmp_path, "tuned", b"other weights")
    assert relatives(one, [tmp_path]) == [other, model]


def test_unchanged_weights_and_half_made_folders_are_left_out(tmp_path: Path) -> None:
    """A copy in BF16, one that is being built, one whose record can't be read, a stray file."""
    model = source(tmp_path)
    built(tmp_path, "copy", model, "bf16")
    built(tmp_path, ".g64.partial-1", model)
    (source(tmp_path, "broken") / "build.json").write_text("{")
    (tmp_path / "file").write_text("")
    assert relatives(model, [tmp_path]) == []


@pytest.mark.parametrize("gone", ["config.json", "model.safetensors"])
def test_a_model_that_lost_a_file_has_no_artefacts(tmp_path: Path, gone: str) -> None:
    """It isn't what they were made of."""
    model = source(tmp_path)
    built(tmp_path, "g64", model)
    (model / gone).unlink()
    assert relatives(model, [tmp_path]) == []
