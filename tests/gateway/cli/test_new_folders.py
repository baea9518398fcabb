"""A command in a wrong folder: it says what it makes, and makes nothing where that is no use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli.commands import main
from gateway.store.connection import DATABASE
from runtime import keyring
from tests.stack import free_port


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("BULKHEAD_CONFIG", "BULKHEAD_ENV", "BULKHEAD_STATE", "BULKHEAD_ROOT_SECRET"):
        monkeypatch.delenv(name, raising=False)
    for name in ("BULKHEAD_PORT", "BULKHEAD_ADMIN_PORT"):  # the usual ones may be in use here
        monkeypatch.setenv(name, str(free_port()))
    return tmp_path


def run(*args: str, value: str | None = None) -> Result:
    return CliRunner().invoke(main, args, input=value)


@pytest.mark.parametrize(
    "command",
    [
        "keys create acme",
        "keys list acme",
        "keys revoke key_1",
        "tenants list",
        "backup b.tar.gz",
        "migrate --dry-run",
        "usage export",
        "restore bad.tar.gz",
        "restore bad.tar.gz --all",
        "restore none.tar.gz",
    ],
)
def test_what_has_nothing_to_work_on_makes_nothing(folder: Path, command: str) -> None:
    (folder / "bad.tar.gz").write_bytes(b"x")
    done = run(*command.split())
    assert done.exit_code == 1
    assert [path.name for path in folder.iterdir()] == ["bad.tar.gz"]


def test_a_dry_run_of_a_restore_makes_nothing(folder: Path) -> None:
    run("tenants", "create", "acme")
    assert run("backup", "b.tar.gz").exit_code == 0
    done = run("restore", "b.tar.gz", "--dry-run", "--state", str(folder / "other"))
    assert done.exit_code == 0
    assert "other" not in done.stderr
    assert not (folder / "other").exists()
    done = run("restore", "b.tar.gz", "--state", str(folder / "other"))
    assert f"Making {folder / 'other'}" in done.stderr
    assert (folder / "other" / DATABASE).exists()


@pytest.mark.parametrize(
    ("command", "made"),
    [
        ("tenants create acme --json", ".bulkhead/bulkhead.db"),
        ("migrate", ".bulkhead/bulkhead.db"),
        ("secret put NAME", ".bulkhead"),
    ],
)
def test_what_is_made_is_told_once(folder: Path, command: str, made: str) -> None:
    first = run(*command.split(), value="sk-1")
    assert f"Making {folder / made}" in first.stderr
    assert "Making" not in first.stdout
    again = run(*command.replace("acme", "globex").split(), value="sk-1")
    assert (again.exit_code, again.stderr) == (0, "")


def test_a_lost_root_secret_is_not_made_up_for(folder: Path) -> None:
    """Keys would stop working, without a word."""
    run("tenants", "create", "acme")
    key = json.loads(run("keys", "create", "acme", "--json").stdout)
    root = keyring.path(folder / ".bulkhead")
    root.unlink()
    for command in ("secret put NAME", "keys create acme", "serve", "gateway", "node"):
        done = run(*command.split(), value="sk-1")
        assert done.exit_code == 1, command
        assert str(root) in done.stderr
        assert not root.exists()
    assert run("keys", "revoke", key["id"]).exit_code == 0
    assert run("secret", "put", "NAME", value="sk-1").exit_code == 0
    assert root.exists()


def test_counts_agree_with_what_they_count(folder: Path) -> None:
    run("tenants", "create", "acme")
    one = run("backup", "one.tar.gz").stdout
    assert "1 tenant, 0 keys, 0 usage records, and 0 files beside the store" in one
    for name in ("globex", "initech"):
        run("tenants", "create", name)
    told = run("restore", "one.tar.gz", "--yes").stdout
    assert "  - 2 tenants, created since\n" in told
