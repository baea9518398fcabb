"""What `bulkhead build` finds and starts: the source, the builder, and why it failed."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

from runtime import building
from runtime.building import BuildFailed, Step, Wish, build, called, name_of, source_folder
from runtime.deployments import Origin
from runtime.settings import Settings, load_text

PYTHON = sys.executable
WISH = Wish("smol", "int4-awq", "fp8", 64, "bulkhead")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """One model in a folder."""
    (tmp_path / "weights").mkdir()
    shape = {"model_type": "llama", "vocab_size": 8, "hidden_size": 64, "intermediate_size": 64}
    shape |= {"num_hidden_layers": 1, "num_attention_heads": 1, "max_position_embeddings": 64}
    config = shape | {"rms_norm_eps": 1e-5, "rope_theta": 1e4, "hidden_act": "silu"}
    (tmp_path / "weights" / "config.json").write_text(json.dumps(config))
    path = json.dumps(str(tmp_path / "weights"))
    text = f'[[models]]\nid = "smol"\nengine = "embedded"\npath = {path}\n'
    return load_text(text, Origin(), tmp_path / "state")[0]


def python_that(does: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in the place of Python."""
    program = folder / "python"
    program.write_text(f"#!{PYTHON}\nimport sys\n{does}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


def test_a_model_is_found_by_its_id_or_its_folder(settings: Settings, tmp_path: Path) -> None:
    """The configuration's ids come first."""
    assert source_folder(settings, "smol") == tmp_path / "weights"
    assert source_folder(settings, str(tmp_path / "weights")) == tmp_path / "weights"


def test_what_is_neither_is_told_with_what_there_is(settings: Settings) -> None:
    """In one sentence."""
    with pytest.raises(BuildFailed, match=r"'smoll' is no embedded model .*\(smol\).*smollm2-135m"):
        source_folder(settings, "smoll")


def test_a_name_tells_what_was_built() -> None:
    """Of folders and ids alike."""
    assert name_of(WISH) == "smol-int4-awq-g64-fp8-kv"
    assert name_of(Wish("/a/qwen3", "bf16", "fp8", 64, "bulkhead")) == "qwen3-bf16-fp8-kv"


def test_a_folder_is_called_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it was written."""
    (tmp_path / "qwen3" / "sub").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "qwen3" / "sub")
    assert [called(name) for name in (".", "..", "/a/llama/")] == ["sub", "qwen3", "llama"]


def test_steps_are_told_and_the_place_returned(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a library prints in between is passed over."""
    lines = '{"step": "layers", "done": 1, "of": 30}\na library says something'
    python_that(f"print({lines!r})", tmp_path, monkeypatch)
    told: list[Step] = []
    place = build(settings, WISH, told.append)
    assert told == [Step("layers", 1, 30)]
    assert place == tmp_path / "state" / "models" / "smol-int4-awq-g64-fp8-kv"


def test_the_builder_s_last_word_is_why_it_failed(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its prefix; without a word, the exit code."""
    python_that("sys.exit('a warning\\nerror: layer 3: K reaches 512')", tmp_path, monkeypatch)
    with pytest.raises(BuildFailed, match=r"^layer 3: K reaches 512$"):
        build(settings, WISH, lambda _: None)
    python_that("sys.exit(3)", tmp_path, monkeypatch)
    with pytest.raises(BuildFailed, match="exit code 3"):
        build(settings, WISH, lambda _: None)


@pytest.mark.parametrize(
    ("missing", "quantizer"), [("torch", "bulkhead"), ("modelopt", "modelopt")]
)
def test_what_isn_t_installed_is_told_with_what_to_do(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, missing: str, quantizer: str
) -> None:
    """Before anything is started."""

    def find(name: str) -> object:
        return None if name == missing else util.find_spec(name) or object()

    monkeypatch.setattr(building, "find_spec", find)
    wish = Wish("smol", "int4-awq", "fp8", 64, quantizer)
    with pytest.raises(BuildFailed, match=rf"bulkhead\[{missing}\]") as told:
        build(settings, wish, lambda _: None)
    assert f"{sys.executable} -m pip" in str(told.value), "the pip on the PATH may be another's"


def test_a_builder_that_says_much_is_not_held_up(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Warnings of a library fill more than a pipe takes."""
    python_that("sys.stderr.write('w\\n' * 200_000)\nprint('{}')", tmp_path, monkeypatch)
    build(settings, WISH, lambda _: None)


def test_a_builder_that_is_killed_is_told_in_words(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as an exit code below 0."""
    python_that("import os\nos.kill(os.getpid(), 9)", tmp_path, monkeypatch)
    with pytest.raises(BuildFailed, match=r"was killed \(signal 9\): perhaps memory ran out"):
        build(settings, WISH, lambda _: None)


def test_the_builder_ends_with_who_follows_it(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends it, and its parent's end does: its stdin is a pipe from there."""
    says = 'print(\'{"step": "layers", "done": %d, "of": 1}\' % os.getpid(), flush=True)'
    python_that(f"import os\n{says}\nsys.stdin.read()", tmp_path, monkeypatch)
    pids: list[int] = []

    def interrupted(step: Step) -> None:
        pids.append(step.done)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(settings, WISH, interrupted)
    assert not Path(f"/proc/{pids[0]}").exists()


def test_a_process_that_watches_its_parent_ends_with_it() -> None:
    """At the end of its stdin."""
    waits = (
        "from engines.build.parent import end_with_parent as e; e(); import time; time.sleep(99)"
    )
    with subprocess.Popen([PYTHON, "-c", waits], stdin=subprocess.PIPE) as process:
        pass  # closes it, and waits
    assert process.returncode == 1
