"""Secrets: where values come from, the vault at rest, and that no value shows anywhere."""

from __future__ import annotations

import base64
import json
import logging
import multiprocessing
import pickle
import traceback
from pathlib import Path

import msgspec
import pytest
import structlog

from runtime import keyring, settings as config
from runtime.config.report import Report
from runtime.config.secret_values import Secrets, Source, resolve, sources
from runtime.config.vault import MAX_BYTES, Vault, VaultError
from runtime.settings import ConfigError, Settings, load

MODEL = '[[models]]\nid = "m"\nengine = "fake"\n'
ATTACHED = (
    '[[models]]\nid = "a"\nengine = "openai"\nurl = "http://x/v1"\napi_key_secret = "UP_KEY"\n'
)
ROOT = "ab" * 32


def project(folder: Path, text: str = ATTACHED) -> Path:
    path = folder / "bulkhead.toml"
    path.write_text(text)
    return path


# --- precedence ---


@pytest.mark.parametrize(
    ("environ", "local", "stored", "dev", "value"),
    [
        ({"UP_KEY": "env"}, "UP_KEY=dev\n", "vault", True, "env"),
        ({}, "UP_KEY=dev\n", "vault", True, "dev"),
        ({}, "UP_KEY=dev\n", "vault", False, "vault"),
        ({"UP_KEY": ""}, "UP_KEY=\n", "vault", True, "vault"),
        ({"UP_KEY": " env\n"}, "", "", False, "env"),
        ({}, "UP_KEY=dev\n", "", False, None),
        ({"UP_KEY": "  "}, "", "", True, None),
    ],
)
def test_environment_then_dev_vars_then_the_vault(
    tmp_path: Path,
    environ: dict[str, str],
    local: str,
    stored: str,
    dev: bool,
    value: str | None,
) -> None:
    path = project(tmp_path)
    (tmp_path / ".dev.vars").write_text(local)
    if stored:
        Vault(tmp_path / ".bulkhead").put("UP_KEY", stored)
    if value is None:
        with pytest.raises(ConfigError) as told:
            load(path, dev=dev, environ=environ)
        (fault,) = told.value.report.errors
        assert fault.path == "models[0].api_key_secret"
        for way in ("`bulkhead secret put UP_KEY`", "environment variable UP_KEY", ".dev.vars"):
            assert way in fault.message
    else:
        settings, _ = load(path, dev=dev, environ=environ)
        assert dict(settings.secrets) == {"UP_KEY": value}


def test_each_place_that_names_a_missing_secret_is_told(tmp_path: Path) -> None:
    text = '[secrets]\nrequired = ["OTHER", "UP_KEY"]\n' + ATTACHED
    with pytest.raises(ConfigError) as told:
        load(project(tmp_path, text), environ={})
    assert {fault.path for fault in told.value.report.errors} == {
        "secrets.required[0]",
        "secrets.required[1]",
        "models[0].api_key_secret",
    }


def test_only_named_secrets_are_loaded(tmp_path: Path) -> None:
    settings, _ = load(project(tmp_path), environ={"UP_KEY": "x", "OTHER": "y"})
    assert list(settings.secrets) == ["UP_KEY"]


def test_a_load_without_stored_secrets_makes_nothing(tmp_path: Path) -> None:
    load(project(tmp_path), environ={"UP_KEY": "x"})
    assert not (tmp_path / ".bulkhead").exists()


def test_an_environment_has_its_own_vault(tmp_path: Path) -> None:
    path = project(tmp_path, ATTACHED + "[env.staging]\nname = 's'\n")
    Vault(tmp_path / ".bulkhead-staging").put("UP_KEY", "staged")
    assert load(path, env="staging", environ={})[0].secrets["UP_KEY"] == "staged"
    with pytest.raises(ConfigError):
        load(path, env="", environ={})


# --- the vault ---


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


def test_a_vault_that_can_t_be_opened_is_told_where_a_secret_is_named(tmp_path: Path) -> None:
    Vault(tmp_path / ".bulkhead", ROOT).put("UP_KEY", "v")
    path = project(tmp_path, '[server]\nport = "x"\n' + ATTACHED)
    with pytest.raises(ConfigError) as told:
        load(path, environ={"BULKHEAD_ROOT_SECRET": "cd" * 32})
    faults = {fault.path: fault.message for fault in told.value.report.errors}
    assert faults.keys() == {"server.port", "models[0].api_key_secret"}
    assert "put it there again" in faults["models[0].api_key_secret"]
    with pytest.raises(ConfigError, match="hexadecimal"):
        load(project(tmp_path), environ={"BULKHEAD_ROOT_SECRET": "short"})
    settings, _ = load(project(tmp_path), environ={"UP_KEY": "other"})
    assert settings.secrets["UP_KEY"] == "other", "nor is it opened when it isn't needed"


# --- they never show ---


def canaries(folder: Path) -> Settings:
    environ = {
        "UP_KEY": "sk-canary",
        "BULKHEAD_ROOT_SECRET": "ca" * 32,
        "BULKHEAD_ADMIN_KEY": "admin-canary",
    }
    return load(project(folder), environ=environ)[0]


def test_no_secret_in_a_repr_or_a_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    settings = canaries(tmp_path)
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("x").warning("settings %s %r", settings, settings.secrets)
    structlog.get_logger().warning("settings", settings=settings, secrets=settings.secrets)
    told = [repr(settings), str(settings), f"{settings}", repr([settings]), repr(settings.secrets)]
    told += [caplog.text, *capsys.readouterr()]
    told += [repr(msgspec.structs.replace(settings, dev=True))]
    for text in told:
        assert "canary" not in text
        assert "caca" not in text


def test_no_secret_in_json(tmp_path: Path) -> None:
    settings = canaries(tmp_path)
    for encode in (msgspec.json.encode, json.dumps):
        with pytest.raises(TypeError):
            encode(settings.secrets)
    assert b"canary" not in msgspec.json.encode(settings.secrets, enc_hook=repr)
    assert b"canary" not in msgspec.json.encode(settings.file)


def test_no_secret_in_a_traceback(tmp_path: Path) -> None:
    """A missing one is asked for like a missing key of a dict; the message has names alone."""
    settings = canaries(tmp_path)
    with pytest.raises(KeyError) as told:
        settings.secrets["NOPE"]
    assert "canary" not in "".join(traceback.format_exception(told.value))


def test_secrets_are_a_mapping_like_any_other() -> None:
    secrets = Secrets({"A": "1", "B": "2"})
    assert (dict(secrets), len(secrets), "A" in secrets) == ({"A": "1", "B": "2"}, 2, True)
    assert secrets == Secrets({"B": "2", "A": "1"})
    assert pickle.loads(pickle.dumps(secrets)) == secrets


def test_what_is_known_of_secrets_says_no_value(tmp_path: Path) -> None:
    path = project(
        tmp_path, '[secrets]\nrequired = ["GONE", "DEV"]\n[server]\nport = 0\n' + ATTACHED
    )
    (tmp_path / ".dev.vars").write_text("DEV=canary\n")
    place = config.locate(path, environ={})
    Vault(place.state_dir).put("SPARE", "canary")
    Vault(place.state_dir).put("UP_KEY", "canary")
    found = config.secrets_known(place, {"UP_KEY": "canary"})
    assert [(s.name, s.source, s.set_at is not None, s.named_by) for s in found] == [
        ("DEV", ".dev.vars", False, ["secrets.required[1]"]),
        ("GONE", None, False, ["secrets.required[0]"]),
        ("SPARE", "vault", True, []),
        ("UP_KEY", "environment", True, ["models[0].api_key_secret"]),
    ]
    assert "canary" not in repr(found)


def test_sources_are_asked_in_their_order_and_no_further(tmp_path: Path) -> None:
    """The vault isn't opened for a secret that the environment has."""

    def explode(name: str) -> str | None:
        raise AssertionError(name)

    report = Report()
    found = resolve({"A": ["x"]}, [Source("first", {"A": "1"}.get), Source("s", explode)], report)
    assert dict(found) == {"A": "1"}
    names = [source.name for source in sources({}, {}, Vault(tmp_path))]
    assert names == ["environment", ".dev.vars", "vault"]


def test_a_look_at_the_file_needs_no_secret(tmp_path: Path) -> None:
    """`bulkhead models` and the like: they serve nothing, so they work where `dev` does."""
    path = project(tmp_path, '[vars]\nA = "x"\n' + ATTACHED + 'owned_by = "${A}${B}"\n')
    (tmp_path / ".dev.vars").write_text("B=y\n")
    settings = config.peek(path, environ={})
    assert settings.file.models[0].owned_by == "xy"
    assert dict(settings.secrets) == {}
    with pytest.raises(ConfigError):
        config.peek(project(tmp_path, "[server]\nport = 0\n"), environ={})
