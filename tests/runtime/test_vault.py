"""Secrets sealed in the state folder."""

from __future__ import annotations

import base64
import json
import multiprocessing
from pathlib import Path

import pytest

from runtime import keyring
from runtime.config.vault import MAX_BYTES, Vault, VaultError

ROOT = "ab" * 32


def test_what_is_put_is_got(tmp_path: Path) -> None:
    vault = Vault(tmp_path / "s")
    assert (vault.names(), vault.get("A"), vault.delete("A")) == ({}, None, False)
    assert not (tmp_path / "s").exists(), "reading makes nothing"
    for value in ("canary-1", "ä\n ", "x" * MAX_BYTES):
        vault.put("A", value)
        assert Vault(tmp_path / "s").get("A") == value
    vault.put("B", "other")
    assert list(vault.names()) == ["A", "B"]
    assert vault.delete("A")
    assert (vault.get("A"), vault.get("B")) == (None, "other")


def test_the_file_is_private_and_holds_no_value(tmp_path: Path) -> None:
    vault = Vault(tmp_path / "s")
    vault.put("A", "canary-1")
    for path in (tmp_path / "s", tmp_path / "s" / "secrets.json"):
        assert path.stat().st_mode & 0o077 == 0
    for file in (tmp_path / "s").iterdir():
        assert b"canary" not in file.read_bytes()
        assert base64.b64encode(b"canary-1").rstrip(b"=") not in file.read_bytes()


def test_one_value_is_never_sealed_the_same_twice(tmp_path: Path) -> None:
    vault = Vault(tmp_path)
    sealed = []
    for _ in range(2):
        vault.put("A", "v")
        sealed.append(json.loads((tmp_path / "secrets.json").read_text())["secrets"]["A"])
    assert sealed[0]["nonce"] != sealed[1]["nonce"]
    assert sealed[0]["sealed"] != sealed[1]["sealed"]


@pytest.mark.parametrize("value", ["", " ", "\n", "x" * (MAX_BYTES + 1)])
def test_no_value_is_no_secret(tmp_path: Path, value: str) -> None:
    with pytest.raises(VaultError, match="1 to 65536 bytes"):
        Vault(tmp_path / "s").put("A", value)
    assert not (tmp_path / "s").exists()


def test_another_root_secret_opens_nothing(tmp_path: Path) -> None:
    Vault(tmp_path, ROOT).put("A", "v")
    assert Vault(tmp_path, ROOT).get("A") == "v"
    with pytest.raises(VaultError, match="sealed with another root secret"):
        Vault(tmp_path, "cd" * 32).get("A")
    with pytest.raises(VaultError, match="sealed with another root secret"):
        Vault(tmp_path).get("A")
    assert not keyring.path(tmp_path).exists(), "a new root secret couldn't open it"


@pytest.mark.parametrize("part", ["nonce", "sealed"])
def test_a_changed_byte_is_noticed(tmp_path: Path, part: str) -> None:
    Vault(tmp_path).put("A", "v")
    path = tmp_path / "secrets.json"
    content = json.loads(path.read_text())
    raw = bytearray(base64.b64decode(content["secrets"]["A"][part]))
    raw[0] ^= 1
    content["secrets"]["A"][part] = base64.b64encode(raw).decode()
    path.write_text(json.dumps(content))
    with pytest.raises(VaultError):
        Vault(tmp_path).get("A")


@pytest.mark.parametrize("part", ["nonce", "sealed"])
def test_a_part_that_is_missing_is_noticed(tmp_path: Path, part: str) -> None:
    Vault(tmp_path).put("A", "v")
    path = tmp_path / "secrets.json"
    content = json.loads(path.read_text())
    content["secrets"]["A"][part] = ""
    path.write_text(json.dumps(content))
    with pytest.raises(VaultError):
        Vault(tmp_path).get("A")


def test_a_lost_root_secret_is_not_replaced_while_it_is_needed(tmp_path: Path) -> None:
    """A new one would seal the next secret, and be overwritten when the old one is put back."""
    Vault(tmp_path).put("A", "v")
    keyring.path(tmp_path).unlink()
    with pytest.raises(VaultError, match="put it back"):
        Vault(tmp_path).put("B", "v")
    assert not keyring.path(tmp_path).exists()


def test_a_newer_format_is_left_alone(tmp_path: Path) -> None:
    text = '{"format": 2, "secrets": {}}'
    (tmp_path / "secrets.json").write_text(text)
    with pytest.raises(VaultError, match="unknown format"):
        Vault(tmp_path).put("A", "v")
    assert (tmp_path / "secrets.json").read_text() == text


def test_two_sealed_values_can_t_be_exchanged(tmp_path: Path) -> None:
    vault = Vault(tmp_path)
    vault.put("A", "a")
    vault.put("B", "b")
    path = tmp_path / "secrets.json"
    content = json.loads(path.read_text())
    content["secrets"]["A"], content["secrets"]["B"] = (
        content["secrets"]["B"],
        content["secrets"]["A"],
    )
    path.write_text(json.dumps(content))
    for name in ("A", "B"):
        with pytest.raises(VaultError):
            vault.get(name)


@pytest.mark.parametrize("text", ["", "[]", '{"secrets": {"A": {}}}', "\x00"])
def test_a_file_that_isn_t_one_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "secrets.json").write_text(text)
    with pytest.raises(VaultError, match=r"secrets\.json can't be read"):
        Vault(tmp_path).get("A")
    with pytest.raises(VaultError, match=r"secrets\.json can't be read"):
        Vault(tmp_path).put("B", "v")
    assert (tmp_path / "secrets.json").read_text() == text


def put_many(folder: Path, prefix: str) -> None:
    for i in range(10):
        Vault(folder, ROOT).put(f"{prefix}{i}", prefix)


def test_commands_at_once_lose_nothing(tmp_path: Path) -> None:
    """Each reads, changes and writes the whole file: they must wait for each other."""
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=put_many, args=(tmp_path, name)) for name in ("A", "B", "C")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert len(Vault(tmp_path, ROOT).names()) == 30


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = Vault(tmp_path)
    vault.put("A", "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("runtime.durable.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        vault.put("A", "new")
    assert vault.get("A") == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "root-secret", "secrets.json", "secrets.lock",
    ]  # fmt: skip
