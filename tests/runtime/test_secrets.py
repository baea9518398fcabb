"""Secrets: where values come from, the vault at rest, and that no value shows anywhere."""

from __future__ import annotations

import json
import logging
import pickle
import traceback
from pathlib import Path

import msgspec
import pytest
import structlog

from runtime import settings as config
from runtime.config.report import Report
from runtime.config.secret_values import Secrets, Source, resolve, sources
from runtime.config.vault import Vault
from runtime.settings import ConfigError, Settings, load

MODEL = '[[models]]\nid = "m"\nengine = "fake"\n'


ATTACHED = (
    '[[models]]\nid = "a"\nengine = "openai"\nkind = "vllm"\nurl = "http://x/v1"\n'
    'api_key_secret = "UP_KEY"\n'
)


ROOT = "ab" * 32


def project(folder: Path, text: str = ATTACHED) -> Path:
    path = folder / "bulkhead.toml"
    path.write_text(text)
    return path


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
