"""Commands that call a gateway which lets in only callers with a certificate."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.authority import Authority
from tests.stack import BULKHEAD, REPO, Stack, fake_config, running

MUTUAL = '[server.tls]\ncert = "server.pem"\nkey = "server.key"\nclient_ca = "ca.pem"\n'


@dataclass
class Door:
    """A gateway with `client_ca`, called by commands."""

    stack: Stack
    authority: Authority

    def call(self, *command: str, **environment: Path | str) -> subprocess.CompletedProcess[str]:
        env = os.environ | {
            "BULKHEAD_URL": self.stack.url,
            "BULKHEAD_API_KEY": self.stack.key,
            "BULKHEAD_CA": str(self.authority.path),
        }
        return subprocess.run(
            [*BULKHEAD, *command],
            env=env | {name: str(path) for name, path in environment.items()},
            cwd=REPO,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def showing(self, stem: str) -> dict[str, Path | str]:
        folder = self.authority.folder
        return {
            "BULKHEAD_CLIENT_CERT": folder / f"{stem}.pem",
            "BULKHEAD_CLIENT_KEY": folder / f"{stem}.key",
        }


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    authority = Authority(tmp_path_factory.mktemp("door"))
    authority.issue()
    authority.client()
    context = authority.context("client")
    with running(authority.folder, fake_config(more=MUTUAL), tls=context) as stack:
        yield Door(stack, authority)


@pytest.mark.parametrize("command", [("whoami",), ("models", "list"), ("models", "schema", "echo")])
def test_with_a_certificate_commands_are_answered(door: Door, command: tuple[str, ...]) -> None:
    done = door.call(*command, "--json", **door.showing("client"))
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)


def test_found_by_its_state_folder_it_is_called_the_same_way(door: Door) -> None:
    places = ("--config", str(door.stack.config), "--state", str(door.stack.state))
    here = {"BULKHEAD_URL": "", **door.showing("client")}
    done = door.call("whoami", *places, **here)
    assert (done.returncode, done.stderr) == (0, "")
    assert door.stack.url in done.stdout


def test_without_one_it_is_said_which_setting_names_it(door: Door) -> None:
    done = door.call("whoami")
    assert done.returncode == 5
    assert "asks who calls for a certificate" in done.stderr
    assert "BULKHEAD_CLIENT_CERT and BULKHEAD_CLIENT_KEY name" in done.stderr
    assert done.stderr.count("\n") == 1


def test_one_of_another_authority_is_not_taken(door: Door, tmp_path: Path) -> None:
    stranger = Door(door.stack, Authority(tmp_path, "another authority"))
    stranger.authority.client()
    done = door.call("whoami", **stranger.showing("client"))
    assert done.returncode == 5
    assert "BULKHEAD_CLIENT_CERT" in done.stderr
    assert done.stderr.count("\n") == 1
