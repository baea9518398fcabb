"""What `bulkhead eval` and `bulkhead build` refuse at once: before a model is looked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli.commands import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--cost-per-hour -1", "'-1' is no price"),
        ("--cost-per-hour NaN", "'NaN' is no price"),
        ("--cost-per-hour 1e400", "no price from 0 to 1,000,000,000"),
        ("--currency euros", "'euros' is no ISO 4217 code"),
        ("--rounds -1", "-1 is not in the range"),
    ],
)
def test_a_number_that_is_none_is_refused(tmp_path: Path, words: str, said: str) -> None:
    """An infinite cost would be no JSON."""
    (tmp_path / "mine.jsonl").write_text('{"prompt": "a"}')
    asked = ["eval", "nobody", "--prompts", str(tmp_path / "mine.jsonl"), *words.split()]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 2
    assert said in done.stderr


@pytest.mark.parametrize("words", ["eval nobody --prompts", "build nobody --calibration"])
def test_a_pipe_is_refused(tmp_path: Path, words: str) -> None:
    """The process that would read it has another standard input."""
    os.mkfifo(tmp_path / "pipe")
    done = CliRunner().invoke(main, [*words.split(), str(tmp_path / "pipe")])
    assert done.exit_code == 2
    assert "must be a file, and no pipe" in done.stderr


def test_either_a_model_or_a_check(tmp_path: Path) -> None:
    """One of the two would be passed over."""
    done = CliRunner().invoke(main, ["build", "nobody", "--check", str(tmp_path)])
    assert done.exit_code == 2
    assert "either a MODEL to build, or --check a folder" in done.stderr
