"""Which file, environment, state folder and secrets a process of ours ends up with."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import pytest

from runtime import settings as config
from runtime.config.models import ModelSettings
from runtime.config.sections import FileSettings
from runtime.settings import ConfigError, Settings, load, parse

MODEL = '[[models]]\nid = "m"\nengine = "fake"\n'


def test_the_built_in_config_is_the_one_in_the_folder_and_has_no_fault(tmp_path: Path) -> None:
    shipped = Path(config.__file__).parent.parent / "config" / "bulkhead.toml"
    built_in, report = load(environ={}, cwd=tmp_path)
    assert built_in.config_path == ""
    assert report.warnings == []
    assert built_in.file == parse(shipped.read_text("utf-8"), "x")[0]
    assert built_in.file.models[0].released == datetime.date(2024, 11, 1)
    assert built_in.state_dir == tmp_path / ".bulkhead"


def named(path: Path, name: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'name = "{name}"\n' + MODEL)
    return path


def test_arguments_win_over_the_environment_and_that_over_the_folder(tmp_path: Path) -> None:
    here = named(tmp_path / "here" / "bulkhead.toml", "folder").parent
    from_env = named(tmp_path / "env.toml", "environment")
    argument = named(tmp_path / "arg.toml", "argument")
    env = {"BULKHEAD_CONFIG": str(from_env), "BULKHEAD_STATE": str(tmp_path / "env-state")}

    def found(**given: Any) -> tuple[str, Path]:
        settings, _ = load(cwd=here, **given)
        return settings.file.name, settings.state_dir

    assert found(environ={}) == ("folder", here / ".bulkhead")
    assert found(environ=env) == ("environment", tmp_path / "env-state")
    assert found(config=argument, state_dir=tmp_path / "s", environ=env) == (
        "argument",
        tmp_path / "s",
    )


def test_the_config_is_searched_upwards_and_in_config_folders(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    named(tmp_path / "config" / "bulkhead.toml", "far")
    assert load(cwd=deep, environ={})[0].file.name == "far"
    named(tmp_path / "a" / "bulkhead.toml", "near")
    assert load(cwd=deep, environ={})[0].file.name == "near"


def test_a_config_that_isn_t_there_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load(tmp_path / "no.toml", environ={})
    with pytest.raises(ConfigError, match=r"no\.toml\n✗ 1 error\n  └─ no such file"):
        load(environ={"BULKHEAD_CONFIG": str(tmp_path / "no.toml")})


def test_a_config_that_is_no_file_is_told_what_it_is(tmp_path: Path) -> None:
    """It is read more than once, and by each process: a pipe gives its text only once."""
    os.mkfifo(tmp_path / "fifo")
    reading, writing = os.pipe()
    try:
        for path in (tmp_path / "fifo", Path(f"/dev/fd/{reading}"), Path("/dev/null")):
            with pytest.raises(ConfigError, match="a pipe or a device"):
                load(path, environ={})
    finally:
        os.close(reading)
        os.close(writing)
    with pytest.raises(ConfigError, match="a folder"):
        load(tmp_path, environ={})


def test_a_config_that_isn_t_text_is_a_fault_too(tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_bytes(b'name = "\xff"\n')
    with pytest.raises(ConfigError, match="UTF-8"):
        load(tmp_path / "b.toml", environ={})


def test_host_and_port_of_the_environment_win_over_the_file(tmp_path: Path) -> None:
    named(tmp_path / "bulkhead.toml", "x")
    env = {"BULKHEAD_HOST": "0.0.0.0", "BULKHEAD_PORT": "1234"}
    server = load(cwd=tmp_path, environ=env)[0].file.server
    assert (server.host, server.port) == ("0.0.0.0", 1234)
    server = load(cwd=tmp_path, environ={"BULKHEAD_HOST": "", "BULKHEAD_PORT": ""})[0].file.server
    assert (server.host, server.port) == ("127.0.0.1", 8787)


@pytest.mark.parametrize("port", ["http", "70000", "-1", "80.5", "²"])
def test_a_port_of_the_environment_that_can_t_be_is_a_fault(tmp_path: Path, port: str) -> None:
    named(tmp_path / "bulkhead.toml", "x")
    with pytest.raises(ConfigError, match="BULKHEAD_PORT"):
        load(cwd=tmp_path, environ={"BULKHEAD_PORT": port})


def test_no_secret_shows_in_a_repr(tmp_path: Path) -> None:
    settings = Settings(
        file=FileSettings(models=(ModelSettings(id="m", engine="openai", api_key_secret="K"),)),
        config_path="c",
        state_dir=tmp_path,
        secrets={"K": "sk-canary"},
        root_secret="root-canary",
    )
    for text in (repr(settings), str(settings), f"{settings}", repr([settings])):
        assert "canary" not in text


def test_a_child_loads_the_same_settings(tmp_path: Path) -> None:
    """What `child_environment` says is what `load` reads."""
    path = named(tmp_path / "bulkhead.toml", "x")
    env = {"BULKHEAD_HOST": "::1", "BULKHEAD_PORT": "99", "BULKHEAD_DEV": "1"}
    settings, _ = load(path, tmp_path / "s", environ=env)
    again, _ = load(environ=config.child_environment(settings), cwd=Path("/"))
    assert again == settings
