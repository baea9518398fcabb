"""`bulkhead init`: what it writes is good as it is, and overwrites nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli.commands import main
from runtime.settings import load
from tests.stack import REPO


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*args: str) -> Result:
    return CliRunner().invoke(main, args)


def test_what_it_writes_passes_the_strict_check() -> None:
    done = run("init", "my gate")
    assert done.exit_code == 0, done.output
    assert "cd my gate && bulkhead dev" in done.stdout
    assert sorted(os.listdir("my gate")) == [
        ".dev.vars", ".gitignore", "bulkhead.schema.json", "bulkhead.toml",
    ]  # fmt: skip
    assert run("check", "--strict", "--dev", "--config", "my gate/bulkhead.toml").exit_code == 0
    assert "# Values for ${NAME} in this file" in Path("my gate/bulkhead.toml").read_text()
    settings, _ = load(Path("my gate/bulkhead.toml"), environ={})
    assert settings.file.name == "my-gate"
    assert Path("my gate/.dev.vars").stat().st_mode & 0o077 == 0
    schema = (REPO / "config" / "bulkhead.schema.json").read_text()
    assert Path("my gate/bulkhead.schema.json").read_text() == schema


def test_its_examples_are_good_too() -> None:
    """What is commented out works when the comment signs go."""
    run("init")
    lines = Path("bulkhead.toml").read_text().splitlines()
    example = lines.index("# [[models]]")
    for i in range(example, len(lines)):
        if lines[i].startswith("# ") and not lines[i].startswith("# Values"):
            lines[i] = lines[i][2:]
    text = "\n".join(line for line in lines if not line.startswith("`bulkhead serve"))
    Path("bulkhead.toml").write_text(text.replace("cert.pem", "").replace("key.pem", ""))
    Path(".dev.vars").write_text("UPSTREAM_KEY=x\n")
    for env in ("", "production"):
        done = run("check", "--strict", "--dev", "--env", env)
        assert done.exit_code == 0, done.stdout


@pytest.mark.parametrize("name", ["bulkhead.toml", "bulkhead.schema.json", ".dev.vars"])
def test_nothing_is_overwritten(name: str) -> None:
    Path(name).write_text("mine")
    done = run("init")
    assert done.exit_code == 1
    assert done.stderr == f"Error: {name} is there already; nothing was written\n"
    assert os.listdir() == [name]
    assert Path(name).read_text() == "mine"


@pytest.mark.parametrize("before", ["", "node_modules/\n", "no end", ".bulkhead/\n"])
def test_a_gitignore_is_added_to(before: str) -> None:
    Path(".gitignore").write_text(before)
    assert run("init").exit_code == 0
    lines = Path(".gitignore").read_text().splitlines()
    assert lines[: len(before.splitlines())] == before.splitlines()
    for line in (".bulkhead/", ".bulkhead-*/", ".dev.vars*"):
        assert lines.count(line) == 1


def test_a_script_is_told_what_was_written(folder: Path) -> None:
    told = json.loads(run("init", "--json").stdout)
    assert told["folder"] == str(folder)
    assert told["files"] == ["bulkhead.toml", "bulkhead.schema.json", ".dev.vars", ".gitignore"]


def test_a_folder_that_can_t_be_made_is_told(folder: Path) -> None:
    Path("file").write_text("")
    done = run("init", "file/below")
    assert done.exit_code == 1
    assert "Not a directory" in done.stderr
