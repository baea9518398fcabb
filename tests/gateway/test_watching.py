"""What `dev` takes for a change of its files, whatever an editor does with them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.cli.watching import Files, watched
from runtime.deployments import Origin
from runtime.settings import Settings, load_text

MODEL = '[[models]]\nid = "echo"\nengine = "fake"\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "bulkhead.toml"
    path.write_text("one")
    return path


def looks(files: Files, count: int = 3) -> list[bool]:
    return [files.have_changed() for _ in range(count)]


def test_a_change_counts_once_and_only_when_it_has_settled(path: Path) -> None:
    files = Files([path])
    assert looks(files) == [False, False, False]
    path.write_text("tw")
    assert not files.have_changed(), "somebody may still be writing"
    path.write_text("two")
    assert looks(files) == [False, True, False]


def test_a_file_that_an_editor_replaces_is_the_same_file(path: Path) -> None:
    files = Files([path])
    draft = path.with_suffix(".new")
    draft.write_text("two")
    draft.replace(path)
    assert looks(files) == [False, True, False]


def test_the_same_content_again_is_no_change(path: Path) -> None:
    files = Files([path])
    os.utime(path, (1, 1))
    path.write_text("one")
    assert looks(files) == [False, False, False]


def test_a_file_that_is_gone_for_a_moment_is_no_change(path: Path) -> None:
    files = Files([path])
    path.rename(path.with_suffix(".bak"))
    assert not files.have_changed()
    path.write_text("one")
    assert looks(files) == [False, False, False]


def test_a_file_that_stays_away_is_one_and_so_is_its_return(path: Path) -> None:
    files = Files([path])
    path.unlink()
    assert looks(files) == [False, True, False]
    path.write_text("one")
    assert looks(files) == [False, True, False]


def settings(config_path: Path, env: str = "") -> Settings:
    origin = Origin(config_path=str(config_path), env=env)
    text = MODEL + (f"[env.{env}]\n" if env else "")
    return load_text(text, origin, config_path.parent / "state")[0]


def test_the_config_and_the_developer_s_variables_are_watched(tmp_path: Path) -> None:
    config = tmp_path / "config" / "bulkhead.toml"
    assert watched(settings(config)) == (config, tmp_path / ".dev.vars")
    assert watched(settings(config, "staging")) == (
        config, tmp_path / ".dev.vars", tmp_path / ".dev.vars.staging",
    )  # fmt: skip
