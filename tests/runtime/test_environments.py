"""`[env.NAME]` by wrangler's rules: what is inherited, what isn't, and who is told."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from runtime.config.environments import merged, names, top
from runtime.config.place import Place
from runtime.config_file import parse
from runtime.settings import ConfigError, load, locate

MODEL = '[[models]]\nid = "m"\nengine = "fake"\n'
FILE = """
name = "gate"
routes = ["a.test/*"]
"$schema" = "./bulkhead.schema.json"
[server]
host = "10.0.0.1"
port = 1000
[limits]
max_requests = 7
[vars]
TONE = "brief"
SIZE = 3
[secrets]
required = ["TOKEN"]
[[tenants]]
name = "acme"
[[models]]
id = "m"
engine = "fake"
"""

# What [env.staging] holds, and what the merged keys are then.
RULES: list[tuple[str, str, dict[str, Any]]] = [
    ("inheritable keys are inherited", "", {
        "routes": ["a.test/*"], "server": {"host": "10.0.0.1", "port": 1000},
        "limits": {"max_requests": 7}, "tenants": [{"name": "acme"}],
        "models": [{"id": "m", "engine": "fake"}],
    }),
    ("a key is replaced whole", "server = { port = 2000 }", {"server": {"port": 2000}}),
    ("a list too", "routes = []", {"routes": []}),
    ("and a list of tables", '[[env.staging.models]]\nid = "n"\nengine = "fake"',
     {"models": [{"id": "n", "engine": "fake"}]}),
    ("the name has the environment's after it", "", {"name": "gate-staging"}),
    ("but its own name is its name", 'name = "other"', {"name": "other"}),
    ("vars aren't inherited", "", {"vars": None}),
    ("nor added to its own", 'vars = { TONE = "long" }', {"vars": {"TONE": "long"}}),
    ("secrets aren't inherited", "", {"secrets": None}),
    ("nor added to its own secrets", 'secrets = { required = ["X"] }',
     {"secrets": {"required": ["X"]}}),
    ("what belongs to the top stays there", "", {"env": None, "$schema": None}),
    ("also when an environment says it", '"$schema" = "x"\nenv = {}',
     {"env": None, "$schema": None}),
]  # fmt: skip


@pytest.mark.parametrize(("own", "keys"), [r[1:] for r in RULES], ids=[r[0] for r in RULES])
def test_what_an_environment_is_made_of(own: str, keys: dict[str, Any]) -> None:
    data = tomllib.loads(f"{FILE}\n[env.staging]\n{own}\n")
    found = merged(data, "staging").data
    assert {key: found.get(key) for key in keys} == keys


def test_the_top_is_the_file_without_its_environments() -> None:
    data = tomllib.loads(FILE + "[env.staging]\n[env.production]\n")
    assert names(data) == ["staging", "production"]
    assert top(data).data == {k: v for k, v in data.items() if k not in ("env", "$schema")}


def test_a_file_without_a_name_has_the_default_s() -> None:
    assert merged({"env": {"x": {}}}, "x").data["name"] == "bulkhead-x"
    assert merged({"env": {"x": {"name": "own"}}}, "x").data["name"] == "own"
    assert merged({"name": 3, "env": {"x": {}}}, "x").data["name"] == 3, "it's told as it is"


@pytest.mark.parametrize(
    ("own", "lost"),
    [
        ("", ["vars.TONE", "vars.SIZE", "secrets.required"]),
        ('vars = { TONE = "x", SIZE = 1 }\nsecrets = { required = ["TOKEN"] }', []),
        ("vars = { SIZE = 1 }", ["vars.TONE", "secrets.required"]),
        ("vars = { OTHER = 1 }\nsecrets = {}", ["vars.TONE", "vars.SIZE", "secrets.required"]),
    ],
)
def test_each_name_that_gets_lost_is_a_warning(own: str, lost: list[str]) -> None:
    report = parse(f"{FILE}\n[env.staging]\n{own}\n", "staging").report
    assert report.errors == []
    assert [w.path for w in report.warnings] == [f"env.staging.{path}" for path in lost]
    for warning in report.warnings:
        assert "at the top, but" in warning.message
        assert "are not inherited; say it in [env.staging." in warning.message


def test_a_secret_that_gets_lost_is_named() -> None:
    report = parse(FILE + "[env.staging]\nvars = { TONE = 1, SIZE = 1 }\n", "staging").report
    assert report.warnings[0].message.startswith("`TOKEN` is at the top")


def test_other_environments_give_no_such_warning() -> None:
    """Who starts production isn't told about staging."""
    text = FILE + '[env.staging]\n[env.production]\nvars = { TONE = "", SIZE = 0 }\n'
    text += "[env.production.secrets]\nrequired = ['TOKEN']\n"
    assert parse(text, "production").report.warnings == []


def test_an_environment_that_isn_t_there_is_an_error_that_says_which_are() -> None:
    text = FILE + "[env.staging]\n[env.production]\n"
    (fault,) = parse(text, "stagin").report.errors
    assert str(fault) == (
        'env: there is no environment "stagin" (there are "staging", "production"); '
        'did you mean "staging"?'
    )
    (fault,) = parse(text, "qa").report.errors
    assert fault.message.endswith("; add a table [env.qa]")
    (fault,) = parse(FILE, "qa").report.errors
    assert "the file has no environments" in fault.message


def test_no_choice_among_environments_is_a_warning_that_a_choice_of_the_top_silences() -> None:
    text = FILE + "[env.staging]\n"
    (warning,) = parse(text, None).report.warnings
    assert warning.path == "env"
    assert '"staging"' in warning.message
    many = "".join(f"[env.a-long-name-of-an-environment-{i}]\n" for i in range(30))
    (warning,) = parse(FILE + many, None).report.warnings
    assert len(str(warning)) < 200, "it fits a line or two, however many there are"
    assert '--env ""' in warning.message
    assert parse(text, "").report.warnings == []
    assert parse(FILE, None).report.warnings == []


def test_a_fault_that_all_inherit_is_told_once() -> None:
    text = 'name = "X"\nnmae = 1\n' + MODEL + "[env.a]\n[env.b]\nname = 'b'\n"
    report = parse(text).report
    assert [fault.path for fault in report.errors] == ["name"]
    assert [fault.path for fault in report.warnings] == ["nmae"]


def test_an_inherited_value_that_is_wrong_in_one_environment_alone_says_where() -> None:
    """The job is fine at the top; staging has other models."""
    text = (
        '[triggers]\ncrons = [{ cron = "0 3 * * *", run = "warm", model = "m" }]\n' + MODEL
        + '[[env.staging.models]]\nid = "n"\nengine = "fake"\n'
    )  # fmt: skip
    for chosen in ("", "staging"):
        (fault,) = parse(text, chosen).report.errors
        assert fault.path == "triggers.crons[0].model"
        assert fault.message.endswith("(as [env.staging] inherits it)")


def test_the_top_needs_no_models_if_an_environment_is_used() -> None:
    text = '[env.a]\nmodels = [{ id = "m", engine = "fake" }]\n'
    assert parse(text, "a").file is not None
    assert [fault.path for fault in parse(text).report.errors] == ["models"]


def test_variables_that_only_the_choice_gives_are_no_fault_before_it() -> None:
    """--var PORT:… comes with --env staging; until then nothing is known of it."""
    text = MODEL + '[env.staging]\nserver = { port = "${PORT}", host = 5 }\n'
    assert [fault.path for fault in parse(text).report.errors] == ["env.staging.server.host"]
    assert {fault.path for fault in parse(text, "staging").report.errors} == {
        "env.staging.server.host",
        "env.staging.server.port",
    }


def test_an_environment_has_its_own_state_folder(tmp_path: Path) -> None:
    path = tmp_path / "bulkhead.toml"
    path.write_text(MODEL + "[env.staging]\nname = 'stage'\n")
    for env, environ, name, folder in (
        ("staging", {}, "stage", ".bulkhead-staging"),
        (None, {"BULKHEAD_ENV": "staging"}, "stage", ".bulkhead-staging"),
        ("", {"BULKHEAD_ENV": "staging"}, "bulkhead", ".bulkhead"),
        (None, {}, "bulkhead", ".bulkhead"),
    ):
        settings, _ = load(path, env=env, environ=environ)
        assert (settings.file.name, settings.state_dir) == (name, tmp_path / folder)
        assert settings.origin.env == settings.env
    settings, _ = load(path, tmp_path / "s", env="staging", environ={})
    assert settings.state_dir == tmp_path / "s"


@pytest.mark.parametrize("env", ["../evil", "nope", "STAGING", "a b"])
def test_no_state_folder_of_an_environment_that_can_t_be(tmp_path: Path, env: str) -> None:
    path = tmp_path / "bulkhead.toml"
    path.write_text(MODEL + "[env.staging]\nname = 'stage'\n[env.'../evil']\n")
    with pytest.raises(ConfigError):
        locate(path, env=env, environ={})
    path.write_text("not TOML")
    if env in ("../evil", "a b"):
        with pytest.raises(ConfigError):
            locate(path, env=env, environ={})


def test_a_place_is_found_whatever_the_file_says(tmp_path: Path) -> None:
    path = tmp_path / "bulkhead.toml"
    path.write_text("[server]\nport = 'x'\n")
    place = locate(path, environ={"BULKHEAD_ROOT_SECRET": "canary"})
    assert type(place) is Place
    assert place.state_dir == tmp_path / ".bulkhead"
    assert "canary" not in repr(place)
