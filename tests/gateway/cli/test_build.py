"""`bulkhead build`: a tiny model is really built, told of, and looked over."""

from __future__ import annotations

import datetime
import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec import convert

from gateway.cli.build import config_lines
from gateway.cli.commands import main
from runtime.building import Wish
from runtime.config.kinds import ModelId
from tests.engines.build.tiny import model, text


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration with one tiny model, and a text."""
    folder = tmp_path_factory.mktemp("place")
    model("llama", folder / "weights")
    text(folder, tokens=6000)
    path = json.dumps(str(folder / "weights"))
    config = f'[[models]]\nid = "tiny"\nengine = "embedded"\npath = {path}\n'
    config += '[models.price]\ninput = "0.10"\noutput = "0.30"\neffective_from = 2026-01-01\n'
    (folder / "bulkhead.toml").write_text(config)
    return folder


def run(place: Path, *words: str) -> tuple[int, str, str]:
    asked = ["build", "--config", str(place / "bulkhead.toml"), "--state", str(place / "state")]
    done = CliRunner().invoke(main, [*asked, *words])
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="module")
def artefact(place: Path) -> Path:
    code, out, err = run(place, "tiny", "--calibration", str(place / "text.txt"))
    assert code == 0, err
    (place / "said").write_text(out)
    (place / "steps").write_text(err)
    return place / "state" / "models" / "tiny-int4-awq-g64-fp8-kv"


def test_the_lines_that_serve_it_are_a_configuration(place: Path, artefact: Path) -> None:
    """After a summary; steps are told on stderr."""
    said = (place / "said").read_text()
    assert "perplexity" in said
    lines = tomllib.loads(said[said.index("[[models]]") :])
    assert lines["models"][0] == {
        "id": "tiny",
        "engine": "embedded",
        "path": str(artefact),
        "options": {"kv_dtype": "fp8_e4m3"},
        "price": {  # as it was: without it, what is served would be free
            "currency": "USD",
            "input": "0.10",
            "cached_input": "0",
            "output": "0.30",
            "effective_from": datetime.date(2026, 1, 1),
        },
    }
    assert "build: layers 0 of 3" in (place / "steps").read_text()


@pytest.mark.parametrize(
    ("folder", "id"),
    [
        ("Qwen3-0.6B", "Qwen3-0.6B"),
        ("my model (v2)", "my-model-v2"),
        ("模型", "model"),
        ("🧱" + "x" * 200, "x" * 128),
        (".hidden", "hidden"),
    ],
)
def test_a_folder_of_any_name_gets_an_id_that_is_one(folder: str, id: str, tmp_path: Path) -> None:
    """As it stands there, where it may."""
    wish = Wish(folder, "int4-awq", "fp8", 64, "bulkhead")
    (table,) = tomllib.loads(config_lines(wish, tmp_path / folder))["models"]
    assert table["id"] == convert(id, ModelId)
    assert table["path"] == str(tmp_path / folder)


def test_it_is_told_as_json(place: Path, artefact: Path) -> None:
    """At once: it is there already."""
    words = ("tiny", "--calibration", str(place / "text.txt"), "--json")
    code, out, _ = run(place, *words)
    assert code == 0
    told = json.loads(out)
    assert told["folder"] == str(artefact)
    assert told["options"]["weights"] == "int4-awq"
    assert told["quality"]["tokens"] > 0


def test_a_good_artefact_passes_the_check(place: Path, artefact: Path) -> None:
    """Exit code 0, and a sentence."""
    code, out, _ = run(place, "--check", str(artefact))
    assert (code, out) == (
        0,
        f"{artefact} is good: our engine and TensorRT-LLM read the same from it.\n",
    )


def test_a_folder_that_is_none_fails_it(place: Path, tmp_path: Path) -> None:
    """Exit code 1, a fault a line, also as JSON."""
    code, out, _ = run(place, "--check", str(tmp_path))
    assert code == 1
    assert out.startswith("✗ ")
    code, out, _ = run(place, "--check", str(tmp_path), "--json")
    assert code == 1
    assert json.loads(out)["ok"] is False


def test_a_model_that_is_none_is_told(place: Path) -> None:
    """And nothing is started."""
    code, _, err = run(place, "huge")
    assert code == 1
    assert "'huge' is no embedded model" in err
    assert run(place)[0] == 2
