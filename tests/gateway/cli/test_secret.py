"""`bulkhead secret`: values go in and never come out."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli.commands import main
from runtime.config.vault import Vault
from runtime.settings import load
from tests.stack import BULKHEAD, REPO

CONFIG = (
    '[[models]]\nid = "a"\nengine = "openai"\nkind = "vllm"\nurl = "http://x/v1"\n'
    'api_key_secret = "UP_KEY"\n'
    "[env.staging]\n"
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("BULKHEAD_CONFIG", "BULKHEAD_ENV", "BULKHEAD_STATE", "UP_KEY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bulkhead.toml").write_text(CONFIG)
    return tmp_path


def secret(*args: str, value: str | None = None) -> Result:
    return CliRunner().invoke(main, ["secret", *args], input=value)


def test_put_list_delete(folder: Path) -> None:
    assert "not set" in secret("list").stdout
    done = secret("put", "UP_KEY", value="sk-canary\n")
    assert done.exit_code == 0
    assert "canary" not in done.output
    settings, _ = load(folder / "bulkhead.toml", environ={})
    assert settings.secrets["UP_KEY"] == "sk-canary"
    listed = secret("list")
    assert "canary" not in listed.output
    assert listed.stdout.splitlines()[0].split() == ["NAME", "FROM", "STORED", "NAMED", "BY"]
    assert listed.stdout.splitlines()[1].split()[:2] == ["UP_KEY", "vault"]
    assert listed.stdout.splitlines()[1].endswith("models[0].api_key_secret")
    done = secret("delete", "UP_KEY")
    assert done.exit_code == 1
    assert "models[0].api_key_secret needs UP_KEY" in done.stderr
    assert secret("delete", "UP_KEY", "--force").exit_code == 0
    assert Vault(folder / ".bulkhead").names() == {}
    done = secret("delete", "UP_KEY")
    assert (done.exit_code, "no secret UP_KEY is stored" in done.stderr) == (1, True)


def test_what_is_stored_and_not_needed_is_deleted_at_once() -> None:
    secret("put", "SPARE", value="x")
    assert secret("delete", "SPARE").exit_code == 0


def test_a_list_for_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    secret("put", "SPARE", value="canary")
    monkeypatch.setenv("UP_KEY", "canary")
    told = json.loads(secret("list", "--json").stdout)
    assert [(s["name"], s["source"], s["named_by"]) for s in told] == [
        ("SPARE", "vault", []),
        ("UP_KEY", "environment", ["models[0].api_key_secret"]),
    ]
    assert told[0]["set_at"].endswith("+00:00")
    assert told[1]["set_at"] is None
    assert "canary" not in json.dumps(told)


@pytest.mark.parametrize("value", ["", "\n", "  \n"])
def test_an_empty_value_is_refused(folder: Path, value: str) -> None:
    done = secret("put", "UP_KEY", value=value)
    assert done.exit_code == 1
    assert "1 to 65536 bytes" in done.stderr
    assert not (folder / ".bulkhead").exists()


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "Ä"])
def test_a_name_that_can_t_be_is_a_wrong_command_line(name: str) -> None:
    assert secret("put", name, value="x").exit_code == 2


def test_a_faulty_file_is_no_obstacle(folder: Path) -> None:
    """A missing secret is a fault of the file: it must be possible to set it."""
    (folder / "bulkhead.toml").write_text('[server]\nport = "x"\n' + CONFIG)
    assert secret("put", "UP_KEY", value="x").exit_code == 0
    assert "vault" in secret("list").stdout


def test_each_environment_has_its_own(folder: Path) -> None:
    assert secret("put", "UP_KEY", "--env", "staging", value="x").exit_code == 0
    assert Vault(folder / ".bulkhead-staging").get("UP_KEY") == "x"
    assert not (folder / ".bulkhead").exists()
    done = secret("put", "UP_KEY", "--env", "stagin", value="x")
    assert done.exit_code == 3
    assert sorted(p.name for p in folder.glob(".bulkhead*")) == [".bulkhead-staging"]


def test_binary_is_no_text() -> None:
    done = CliRunner().invoke(main, ["secret", "put", "A"], input=b"\xff\xfe")
    assert (done.exit_code, "UTF-8" in done.stderr) == (1, True)


def test_a_terminal_is_asked_and_shows_nothing(folder: Path) -> None:
    """A real terminal: the value isn't echoed."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [*BULKHEAD, "secret", "put", "UP_KEY"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(REPO)},
        start_new_session=True,
    )
    os.close(slave)
    shown = b""
    deadline = time.monotonic() + 60
    while b"Value of UP_KEY:" not in shown and time.monotonic() < deadline:
        shown += os.read(master, 4096)
    os.write(master, b"sk-canary\n")
    try:
        while chunk := os.read(master, 4096):
            shown += chunk
    except OSError:  # Linux's way to say that the other end was closed
        pass
    assert process.wait(60) == 0
    os.close(master)
    assert b"Stored UP_KEY" in shown
    assert b"canary" not in shown
    assert Vault(folder / ".bulkhead").get("UP_KEY") == "sk-canary"
