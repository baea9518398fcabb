"""Builds in odd places and times: what is replaced, what changes meanwhile, what can't be read."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from engines.build import make, publish as publishing
from engines.build.make import main
from engines.build.plan import BuildError, Options
from engines.build.preflight import faults
from tests.engines.build.tiny import built, bytes_of, model, text


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model("qwen2", tmp_path_factory.mktemp("source") / "qwen2")


class Killed(BaseException):
    """What a process doesn't survive."""


def test_only_what_was_built_is_replaced(source: Path, tmp_path: Path) -> None:
    """A folder with a build.json of another tool's isn't; nor is what is built from."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "build.json").write_text('{"key": "value", "scripts": {}}')
    with pytest.raises(BuildError, match="another --out"):
        built(source, tmp_path / "site", text(tmp_path))
    assert (tmp_path / "site" / "build.json").is_file()
    built(source, tmp_path / "plain", text(tmp_path), weights="bf16", kv="bf16")
    before = bytes_of(tmp_path / "plain")
    (tmp_path / "link").symlink_to(tmp_path / "plain")
    for out in ("plain", "link"):
        with pytest.raises(BuildError, match="would be built from"):
            built(tmp_path / "plain", tmp_path / out, text(tmp_path))
    assert bytes_of(tmp_path / "plain") == before


def test_a_link_s_folder_is_replaced_and_the_link_stays(source: Path, tmp_path: Path) -> None:
    """Where artefacts lie on another disk."""
    built(source, tmp_path / "there", text(tmp_path), kv="bf16")
    (tmp_path / "out").symlink_to(tmp_path / "there")
    built(source, tmp_path / "out", text(tmp_path))
    assert (tmp_path / "out").is_symlink()
    assert faults(tmp_path / "there") == []


def test_an_artefact_that_was_damaged_is_built_again(source: Path, tmp_path: Path) -> None:
    """Its build.json alone doesn't make it whole."""
    built(source, tmp_path / "out", text(tmp_path))
    before = bytes_of(tmp_path / "out")
    (tmp_path / "out" / "model.safetensors").unlink()
    built(source, tmp_path / "out", text(tmp_path))
    assert bytes_of(tmp_path / "out") == before


def test_a_kill_while_an_older_artefact_is_replaced_leaves_no_half_one(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older one goes as a whole, so that the next build finds its place free."""
    built(source, tmp_path / "out", text(tmp_path), kv="bf16")

    def dies(folder: Path, **_: object) -> None:
        for path in folder.glob("*.safetensors"):
            path.unlink()
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(publishing, "shutil", SimpleNamespace(rmtree=dies))
        with pytest.raises(Killed):
            built(source, tmp_path / "out", text(tmp_path))
    assert faults(tmp_path / "out") == []
    built(source, tmp_path / "out", text(tmp_path), kv="bf16")
    assert not [path for path in tmp_path.iterdir() if "partial" in path.name]


@pytest.mark.parametrize("name", ["chat_template.jinja", "generation_config.json", "vocab.json"])
def test_every_file_that_is_copied_is_part_of_the_plan(tmp_path: Path, name: str) -> None:
    """An artefact with yesterday's template isn't what today's source leads to."""
    changing = model("llama", tmp_path / "source")
    (changing / name).write_text("{}")
    built(changing, tmp_path / "out", text(tmp_path))
    (changing / name).write_text('{"a": 1}')
    built(changing, tmp_path / "out", text(tmp_path))
    assert (tmp_path / "out" / name).read_text() == '{"a": 1}'


def test_a_source_that_changes_meanwhile_is_told(tmp_path: Path) -> None:
    """What was read is neither the old one nor the new."""
    changing = model("llama", tmp_path / "source")
    other = model("llama", tmp_path / "other", rms_norm_eps=1e-3)

    def change(step: str, *_: int) -> None:
        if step == "measuring":
            (other / "config.json").rename(changing / "config.json")

    with pytest.raises(BuildError, match="changed while it was read: build again"):
        make.build(changing, tmp_path / "out", Options(), text(tmp_path), change)
    assert not (tmp_path / "out").exists()


def test_who_waits_for_another_build_says_so(source: Path, tmp_path: Path) -> None:
    """A silent wait would look like a build that hangs."""
    told: list[str] = []
    with ExitStack() as other:
        other.enter_context(publishing.lock(tmp_path / "out"))

        def tell(step: str, *_: int) -> None:
            told.append(step)
            other.close()

        make.build(source, tmp_path / "out", Options(), text(tmp_path), tell)
    assert told[0] == "waiting for another build of the same folder"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"text": "\\ud800"}', "lone surrogate"),
        ('{"text": 3}', "expected an object"),
        ('{"messages": [{"role": "user", "content": null}]}', "expected an object"),
        ("[" * 5000, "expected an object"),
    ],
)
def test_text_that_can_t_be_read_is_told_in_one_sentence(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    """Where a tokenizer or the JSON reader refuses it, too."""
    path = tmp_path / "mine.jsonl"
    path.write_text(line)
    assert main([str(source), "--out", str(tmp_path / "out"), "--calibration", str(path)]) == 1
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("error: ")
    assert said in told


def test_a_pipe_is_no_calibration_text(source: Path, tmp_path: Path) -> None:
    """It has its text once."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BuildError, match="must be a file"):
        built(source, tmp_path / "out", tmp_path / "pipe")


def test_a_full_disk_is_told(source: Path, tmp_path: Path) -> None:
    """In a sentence, by whichever library meets it first."""
    limited = "ulimit -f 60; exec " + shlex.join([sys.executable, "-m", "engines.build.make"])
    asked = [str(source), "--out", str(tmp_path / "out"), "--calibration", str(text(tmp_path))]
    done = subprocess.run(
        ["bash", "-c", f"{limited} {shlex.join(asked)}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "too large" in done.stderr


def test_inputs_that_no_group_divides_are_told_with_what_can_be_built(tmp_path: Path) -> None:
    """Not with the very group that was asked for."""
    odd = model("llama", tmp_path / "odd", hidden_size=72)
    with pytest.raises(BuildError, match=r"the 72 inputs of self_attn.q_proj; try --weights bf16"):
        built(odd, tmp_path / "out", text(tmp_path))
    built(odd, tmp_path / "out", text(tmp_path), weights="bf16")
