"""The fetch of a model is told line by line, and why it failed is told once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from runtime import weights
from runtime.deployments import Origin
from runtime.settings import Settings, load_text

MODEL = '[[models]]\nid = "smol"\nengine = "embedded"\nsource = "smollm2-135m-instruct"\n'


def settings(folder: Path, monkeypatch: pytest.MonkeyPatch, fetch: str) -> Settings:
    """With a program in the place of Python that says this on stderr, and fails."""
    program = folder / "python"
    program.write_text(f"#!{sys.executable}\nimport sys\nsys.exit({fetch!r})\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return load_text(MODEL, Origin(), folder / "state")[0]


def test_progress_is_told_and_the_reason_is_the_error_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = settings(tmp_path, monkeypatch, "fetch: downloading it\nerror: no network")
    with pytest.raises(weights.WeightsUnavailable, match=r"smol can't be had: no network$"):
        weights.ensure(given)
    assert capsys.readouterr().err == "fetch: downloading it\n"


def test_a_fetch_that_ends_without_a_word_is_told_by_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = settings(tmp_path, monkeypatch, "fetch: downloading it")
    with pytest.raises(weights.WeightsUnavailable, match="exit code 1"):
        weights.ensure(given)
    assert capsys.readouterr().err == "fetch: downloading it\n"
