"""What `deploy` and `rollback` tell of where `bulkhead dev` runs, which deploys by itself."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from gateway.cli.deploy import by_a_save, undone_by
from gateway.cli.watching import Watch
from runtime.deployments import Deployment, Deployments, Origin
from runtime.settings import Settings, load_text

MODEL = '[[models]]\nid = "echo"\nengine = "fake"\n'


def settings(path: Path, *, dev: bool) -> Settings:
    origin = Origin(config_path=str(path))
    return load_text(MODEL, origin, path.parent / "state", dev=dev)[0]


def test_under_dev_the_next_save_undoes_a_rollback(tmp_path: Path) -> None:
    told = undone_by(settings(tmp_path / "b.toml", dev=True))
    assert "`bulkhead dev` deploys it when it is next saved" in told
    assert "--deployed" not in told


def test_elsewhere_a_deploy_or_a_start_does(tmp_path: Path) -> None:
    told = undone_by(settings(tmp_path / "b.toml", dev=False))
    assert "the next `bulkhead deploy`, or start without --deployed" in told


def test_what_dev_deployed_at_a_save_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    path = tmp_path / "b.toml"
    path.write_text(MODEL)
    saved = settings(path, dev=True)
    Watch(saved, tell=lambda _: None).deploy()
    assert "`bulkhead dev` had deployed it" in by_a_save(Deployments(saved.state_dir).read(1))


def test_what_somebody_deployed_is_not() -> None:
    at = datetime.datetime(2026, 11, 30, tzinfo=datetime.UTC)
    assert by_a_save(Deployment(number=1, at=at, by="x", origin=Origin(), message="why")) == ""
