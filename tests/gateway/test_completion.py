"""The command line is completed by real shells, with what is in the state folder."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli.commands import main

BASH = """
source script.bash
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_bulkhead_completion bulkhead
printf '%s\\n' "${COMPREPLY[@]}"
"""
CONFIG = """
[[models]]
id = "echo"
engine = "fake"

[[models]]
id = "elsewhere"
engine = "openai"
cache = "salted"
url = "http://127.0.0.1:1/v1"

[env.staging]
[env.production]
"""


class Desk:
    """A folder with a config and a state, where `bulkhead` is a command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bulkhead.toml").write_text(CONFIG)
        (folder / "bin").mkdir()
        program = folder / "bin" / "bulkhead"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m gateway "$@"\n')
        program.chmod(0o755)
        self.env = {
            "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
            "HOME": str(folder),
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
            "TERM": "dumb",
        }
        self.run("tenants", "create", "acme")
        self.run("tenants", "create", "globex")
        for shell in ("bash", "zsh", "fish"):
            (folder / f"script.{shell}").write_text(self.run("completion", shell))
        self.key = json.loads(self.run("keys", "create", "acme", "--json"))["id"]

    def run(self, *command: str) -> str:
        places = {"BULKHEAD_CONFIG": str(self.folder / "bulkhead.toml")}
        done = CliRunner(env=places).invoke(main, command, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    def shell(self, *command: str) -> list[str]:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        assert done.stderr == ""
        return done.stdout.split("\n")[:-1]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return Desk(tmp_path_factory.mktemp("desk"))


def shell(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} isn't installed")
    return path


def completed(desk: Desk, line: str) -> list[str]:
    """What bash makes of a line, which ends where the cursor stands."""
    return desk.shell(shell("bash"), "-c", BASH, "bash", *line.split(" "))


def test_bash_completes_commands_and_options(desk: Desk) -> None:
    assert completed(desk, "bulkhead ten") == ["tenants"]
    assert completed(desk, "bulkhead tenants ") == ["create", "disable", "enable", "list", "set"]
    assert completed(desk, "bulkhead restore --d") == ["--dry-run"]


def test_bash_completes_tenants_keys_and_models(desk: Desk) -> None:
    assert completed(desk, "bulkhead keys create a") == ["acme"]
    assert completed(desk, "bulkhead usage export --tenant ") == ["acme", "globex"]
    assert completed(desk, "bulkhead keys revoke ") == [desk.key]
    assert completed(desk, "bulkhead hosts restart e") == ["echo"], "no attached server"


def test_bash_completes_environments(desk: Desk) -> None:
    assert completed(desk, "bulkhead check --env ") == ["staging", "production"]
    assert completed(desk, "bulkhead serve -e st") == ["staging"]


def test_fish_completes(desk: Desk) -> None:
    code = "source script.fish; complete -C 'bulkhead keys create '"
    found = desk.shell(shell("fish"), "-c", code)
    assert [line.split("\t")[0] for line in found] == ["acme", "globex"]


def test_zsh_completes_at_its_prompt(desk: Desk) -> None:
    """Its completion only runs inside its line editor, so it gets a terminal."""
    with Terminal([shell("zsh"), "-f", "-i"], desk) as terminal:
        terminal.type("autoload -Uz compinit && compinit -u && source script.zsh && echo re''ady\n")
        terminal.wait_for("ready")
        terminal.type("bulkhead keys revoke key\t")
        terminal.wait_for(desk.key)


class Terminal:
    """A program at a terminal."""

    def __init__(self, command: list[str], desk: Desk) -> None:
        self._ours, theirs = pty.openpty()
        self._seen = ""
        self._process = subprocess.Popen(
            command, cwd=desk.folder, env=desk.env, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        os.set_blocking(self._ours, False)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + 120
        while text not in self._seen:
            assert time.monotonic() < deadline, self._seen
            try:
                self._seen += os.read(self._ours, 4096).decode(errors="replace")
            except BlockingIOError:
                time.sleep(0.05)


@pytest.mark.parametrize(
    "words", ["keys create ", "hosts restart ", "secret delete ", "rollback ", "check --env "]
)
def test_what_cannot_be_read_has_no_completions_and_no_faults(tmp_path: Path, words: str) -> None:
    """A config with faults, and a state folder that isn't there; nothing is made."""
    (tmp_path / "bulkhead.toml").write_text("models = 7\n[")
    env = {
        "_BULKHEAD_COMPLETE": "bash_complete",
        "COMP_WORDS": f"bulkhead {words}",
        "COMP_CWORD": str(len(words.split(" "))),
        "BULKHEAD_CONFIG": str(tmp_path / "bulkhead.toml"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "gateway"],
        env=os.environ | env,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert (done.stdout.strip(), done.stderr) == ("", "")
    assert [path.name for path in tmp_path.iterdir()] == ["bulkhead.toml"]
