"""`bulkhead check`: what it prints for people and for scripts, and how it ends."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli.commands import main
from tests.stack import BULKHEAD, REPO

MODEL = '[[models]]\nid = "m"\nengine = "fake"\n'
BROKEN = '[server]\nport = "x"\n' + MODEL


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("BULKHEAD_CONFIG", "BULKHEAD_ENV", "BULKHEAD_STATE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def check(text: str, *args: str) -> Result:
    Path("bulkhead.toml").write_text(text)
    return CliRunner().invoke(main, ["check", *args])


def test_a_good_file_is_told_in_a_line() -> None:
    done = check(MODEL)
    assert (done.exit_code, done.stdout) == (0, "bulkhead.toml is good.\n")
    done = check(MODEL, "--json")
    assert json.loads(done.stdout) == {
        "source": "bulkhead.toml", "ok": True, "errors": [], "warnings": [],
    }  # fmt: skip
    assert os.listdir() == ["bulkhead.toml"]


def test_a_broken_file_is_a_tree_and_exit_code_3() -> None:
    done = check("nmae = 1\n" + BROKEN)
    assert done.exit_code == 3
    assert done.stdout.splitlines() == [
        "bulkhead.toml",
        "✗ 1 error",
        '  └─ server.port: expected a whole number from 1 to 65535, found the text "x"',
        "▲ 1 warning",
        "  └─ nmae: unknown key, ignored; did you mean `name`?",
    ]


def test_warnings_are_no_error_unless_it_is_strict() -> None:
    text = "nmae = 1\n" + MODEL
    done = check(text)
    assert done.exit_code == 0
    assert done.stdout.endswith("`name`?\nbulkhead.toml is good.\n")
    done = check(text, "--strict")
    assert done.exit_code == 3
    assert "✗ 1 error\n  └─ nmae" in done.stdout
    told = json.loads(check(text, "--strict", "--json").stdout)
    assert (told["ok"], told["warnings"]) == (False, [])
    assert told["errors"][0]["path"] == "nmae"


def test_the_environment_is_chosen_with_an_option() -> None:
    text = MODEL + '[env.a]\nname = "x"\n[env.b]\nsecrets = { required = ["GONE"] }\n'
    assert check(text, "--strict", "-e", "a").exit_code == 0
    assert "env.b.secrets.required[0]: the secret GONE is not set" in check(text, "-e", "b").stdout
    assert check(text, "--strict").exit_code == 3, "no choice is a warning"
    assert check(text, "--strict", "--env", "").exit_code == 0
    done = check(text, "-e", "c")
    assert done.exit_code == 3
    assert 'there is no environment "c" (there are "a", "b")' in done.stdout


def test_variables_of_the_command_line() -> None:
    text = MODEL + 'max_waiting = "${N}"\n'
    assert check(text).exit_code == 3
    assert check(text, "--var", "N:5").exit_code == 0
    done = check(text, "--var", "N=5")
    assert done.exit_code == 2
    assert "'N=5' is not NAME:VALUE" in done.stderr


def test_dev_vars_are_looked_at_only_when_asked() -> None:
    Path(".dev.vars").write_text("N=5\n")
    text = MODEL + 'max_waiting = "${N}"\n'
    assert check(text).exit_code == 3
    assert check(text, "--dev").exit_code == 0


def test_a_file_that_isn_t_there() -> None:
    done = CliRunner().invoke(main, ["check", "--config", "no.toml"])
    assert done.exit_code == 3
    assert done.stdout == "no.toml\n✗ 1 error\n  └─ no such file\n"


def test_the_schema_is_the_one_that_ships() -> None:
    done = CliRunner().invoke(main, ["check", "--print-schema"])
    assert done.stdout == (REPO / "config" / "bulkhead.schema.json").read_text()


def test_colour_is_for_terminals(folder: Path) -> None:
    """A real one, and a real pipe."""
    (folder / "bulkhead.toml").write_text(BROKEN)
    command = [*BULKHEAD, "check"]
    env = os.environ | {"PYTHONPATH": str(REPO), "TERM": "xterm"}
    piped = subprocess.run(command, capture_output=True, cwd=folder, env=env, check=False)
    assert piped.returncode == 3
    assert "✗ 1 error".encode() in piped.stdout
    assert b"\033" not in piped.stdout
    master, slave = pty.openpty()
    process = subprocess.Popen(command, stdout=slave, cwd=folder, env=env)
    os.close(slave)
    shown = b""
    try:
        while chunk := os.read(master, 4096):
            shown += chunk
    except OSError:  # Linux's way to say that the other end was closed
        pass
    assert process.wait(60) == 3
    os.close(master)
    assert "\033[31m✗ 1 error\033[0m".encode() in shown


@pytest.mark.parametrize("command", ["dev", "serve", "gateway", "node", "deploy"])
def test_nothing_starts_with_a_broken_file(folder: Path, command: str) -> None:
    """The same tree, on stderr; and no state folder."""
    (folder / "bulkhead.toml").write_text(BROKEN + '[[models]]\nid = "m"\nengine = "fake"\n')
    done = subprocess.run(
        [*BULKHEAD, command],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(REPO)},
        check=False,
        timeout=120,
    )
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "bulkhead.toml",
        "✗ 2 errors",
        '  ├─ server.port: expected a whole number from 1 to 65535, found the text "x"',
        "  └─ models[1].id: 'm' is used twice",
    ]
    assert os.listdir(folder) == ["bulkhead.toml"]


FREE = '[[models]]\nid = "m"\nengine = "openai"\nkind = "vllm"\nurl = "http://10.0.0.5/v1"\n'


@pytest.mark.parametrize("command", ["check", "deploy", "deploy --dry-run"])
def test_a_model_without_a_price_is_warned_of_once(command: str) -> None:
    Path("bulkhead.toml").write_text(FREE)
    done = CliRunner().invoke(main, command.split())
    assert done.exit_code == 0
    assert done.output.count("price: isn't named, so its tokens are free") == 1
    Path("bulkhead.toml").write_text(FREE + 'price = { input = "0", output = "0" }\n')
    done = CliRunner().invoke(main, command.split())
    assert done.exit_code == 0
    assert "free" not in done.output
