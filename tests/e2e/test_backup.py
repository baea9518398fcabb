"""Backup and restore while it serves: nobody's request fails, and nothing is lost unsaid."""

from __future__ import annotations

import json
import sqlite3
import tarfile
import time
from collections.abc import Iterator
from contextlib import closing
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.backups import archive
from runtime.config.vault import Vault
from tests.e2e.clients import BODY, Load
from tests.e2e.ledger import exported
from tests.stack import SOAK, Stack, fake_config, running


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with running(tmp_path, fake_config(step_s=0.005)) as stack:
        yield stack


def billed_in(archive: Path, folder: Path) -> set[str]:
    """The requests that a backup's store has as billed."""
    with tarfile.open(archive) as tar:
        tar.extract("bulkhead.db", folder, filter="data")
    with closing(sqlite3.connect(folder / "bulkhead.db")) as db:
        rows = db.execute("SELECT request_id FROM usage_record WHERE billable").fetchall()
    return {request_id for (request_id,) in rows}


LEFT_OUT = (
    "bulkhead.db*",  # the store: copied by SQLite
    "*.lock",
    "deployments/lock",
    "boots/*",  # which processes live
    "backups/*",
    "dev.log*",
    "models/*",  # weights: fetched again
    "tls/cert.pem",
    "tls/key.pem",  # made anew from the authority
)


def test_every_file_of_a_state_folder_is_backed_up_or_left_out_on_purpose(stack: Stack) -> None:
    """A new file has to be thought of."""
    Vault(stack.state).put("SOMETHING", "value")
    stack.cli("deploy")
    assert status(stack, stack.key) == 200
    files = [path for path in stack.state.rglob("*") if path.is_file()]
    names = [path.relative_to(stack.state).as_posix() for path in files]
    known = (*archive.FILES, *LEFT_OUT)
    assert {"root-secret", "secrets.json", "admin-key", "deployments/current"} <= set(names)
    assert [name for name in names if not any(fnmatchcase(name, kind) for kind in known)] == []


def status(stack: Stack, secret: str) -> int:
    headers = {"authorization": f"Bearer {secret}"}
    answer = httpx.post(f"{stack.url}/v1/completions", json=BODY, headers=headers, timeout=60)
    return answer.status_code


def restore(stack: Stack, *args: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(stack.cli("restore", *args, "--json"))
    return found


def test_restores_under_load_fail_no_request_and_lose_no_usage(
    stack: Stack, tmp_path: Path
) -> None:
    """What the store loses is named, and lies in the backup that the restore makes."""
    saved: set[str] = set()
    with Load(stack, 8) as load:
        for number in range(20 if SOAK else 3):
            load.wait_for_more(20)
            file = tmp_path / f"{number}.tar.gz"
            told = json.loads(stack.cli("backup", str(file), "--json"))
            assert told["bytes"] == file.stat().st_size
            load.wait_for_more(20)
            done = restore(stack, str(file), "--yes")
            assert done["restored"]
            assert done["lost"]["records"] >= 20
            assert float(done["lost"]["amounts"]["USD"]) > 0
            saved |= billed_in(Path(done["safety"]), tmp_path / str(number))
            load.wait_for_more(20)
    assert load.failed == []
    now = {row["request_id"] for row in exported(stack) if row["billable"]}
    assert set(load.ended) <= now | saved
    assert set(load.ended) - now, "the restores did take something away"
    assert not stack.cli("restore", str(file), ok=False).startswith("Restored")


def test_keys_of_the_backup_work_at_once_and_later_ones_no_more(
    stack: Stack, tmp_path: Path
) -> None:
    file = str(tmp_path / "b.tar.gz")
    stack.cli("tenants", "create", "acme")
    old = json.loads(stack.cli("keys", "create", "acme", "--json"))
    stack.cli("backup", file)
    stack.cli("keys", "revoke", old["id"])
    new = json.loads(stack.cli("keys", "create", "acme", "--json"))
    deadline = time.monotonic() + 30
    while (status(stack, old["secret"]), status(stack, new["secret"])) != (401, 200):
        assert time.monotonic() < deadline
    told = stack.cli("restore", file, ok=False)
    assert "would be lost: add --yes" in told
    assert status(stack, new["secret"]) == 200, "nothing was changed"
    done = restore(stack, file, "--yes")
    assert (status(stack, old["secret"]), status(stack, new["secret"])) == (200, 401)
    assert (done["lost"]["keys"], done["lost"]["revocations"]) == (1, 1)
    restore(stack, done["safety"], "--yes")
    assert (status(stack, old["secret"]), status(stack, new["secret"])) == (401, 200)


def test_a_restore_gives_up_on_an_answer_that_runs_too_long(stack: Stack, tmp_path: Path) -> None:
    file = str(tmp_path / "b.tar.gz")
    stack.cli("backup", file)
    body = BODY | {"prompt": "x" * 600, "max_tokens": 600, "stream": True}
    with stack.client() as client, client.stream("POST", "/v1/completions", json=body) as answer:
        frames = answer.iter_text()
        next(frames)
        told = stack.cli("restore", file, "--yes", "--wait", "0.2", ok=False)
        assert "Nothing was changed" in told
        assert "".join(frames).endswith("data: [DONE]\n\n")
    rows = exported(stack)
    assert [row["outcome"] for row in rows] == ["length"]
    assert restore(stack, file, "--yes")["lost"]["records"] == 1
    assert exported(stack) == []


def test_everything_can_only_be_restored_while_nothing_runs(stack: Stack, tmp_path: Path) -> None:
    file = str(tmp_path / "b.tar.gz")
    stack.cli("backup", file)
    assert "already in use" in stack.cli("restore", file, "--all", "--yes", ok=False)
    stack.stop()
    (stack.state / "root-secret").write_text("ab" * 32 + "\n")
    assert "another root secret" in stack.cli("restore", file, "--yes", ok=False)
    done = restore(stack, file, "--all", "--yes")
    assert "root-secret" in done["puts_back"]
    key = stack.key
    stack.start()
    assert stack.key == key
    assert status(stack, key) == 200


def test_a_lost_machine_is_restored_from_its_backup(stack: Stack, tmp_path: Path) -> None:
    """On an empty folder: keys and usage are there again, and new usage adds to it."""
    assert status(stack, stack.key) == 200
    before = exported(stack)
    stack.cli("backup", str(tmp_path / "b.tar.gz"))
    stack.stop()
    stack.state = tmp_path / "new" / "state"
    stack.state.parent.mkdir()
    assert restore(stack, str(tmp_path / "b.tar.gz"))["safety"] is None
    stack.start()
    assert exported(stack) == before
    assert status(stack, stack.key) == 200
    assert len(exported(stack)) == len(before) + 1
