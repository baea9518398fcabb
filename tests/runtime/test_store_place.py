"""Where the store is: `[store]`, its secret, the environment, and what can't be."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime import settings
from runtime.config.store import url_fault
from runtime.settings import ConfigError
from runtime.store_place import store_place

MODELS = '[[models]]\nid = "m"\nengine = "fake"\n'
URL = "postgresql://bulkhead@db.internal/bulkhead"
STORE = f'[store]\nurl = "{URL}"\npassword_secret = "PW"\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "bulkhead.toml"
    path.write_text(text)
    return path


def faults(folder: Path, text: str, environ: dict[str, str] | None = None) -> list[str]:
    try:
        settings.load(written(folder, text), folder / "state", environ=environ or {})
    except ConfigError as told:
        shown, errors = str(told), told.report.errors
    else:
        return []
    assert "canary" not in shown
    return [f"{fault.path}: {fault.message}" for fault in errors]


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("mysql://h/db", "expected a postgresql:// URL"),
        ("postgresql:///db", "expected a host"),
        ("postgresql://h", "expected a database"),
        ("postgresql://h:port/db", "expected a postgresql:// URL; in a name"),
        ("postgresql://u:canary/x@h/db", "expected a postgresql:// URL; in a name"),
        ("postgresql://u:canary@h/db", "a password doesn't belong here"),
        ("postgresql://u@h/db?password=canary", "a password doesn't belong here"),
    ],
)
def test_a_url_that_can_t_be_is_told_with_its_path_and_not_shown(
    tmp_path: Path, url: str, told: str
) -> None:
    found = faults(tmp_path, f'[store]\nurl = "{url}"\n{MODELS}')
    assert len(found) == 1
    assert found[0].startswith(f"store.url: {told}")


@pytest.mark.parametrize(
    "url",
    ["postgres://h/db", f"{URL}?sslmode=require", "postgresql://u@/db?host=/run/postgresql",
     "postgresql://u@[::1]:5433/db"],
)  # fmt: skip
def test_urls_that_libpq_takes(url: str) -> None:
    assert url_fault(url) == ""


def test_a_missing_secret_and_a_backup_of_a_server_are_faults(tmp_path: Path) -> None:
    (found,) = faults(tmp_path, STORE + MODELS)
    assert found.startswith("store.password_secret: the secret PW is not set")
    cron = '[[triggers.crons]]\ncron = "0 3 * * *"\nrun = "backup"\nto = "b"\n'
    (found,) = faults(tmp_path, STORE + cron + MODELS, {"PW": "x"})
    assert found.startswith("triggers.crons[0].run: ")
    assert "pg_dump" in found


def test_the_environment_wins_and_is_checked(tmp_path: Path) -> None:
    theirs = {"BULKHEAD_STORE_URL": "postgresql://u:canary@h/db"}  # the file's secret isn't needed
    path = written(tmp_path, STORE + MODELS)
    loaded, _ = settings.load(path, tmp_path / "state", environ=theirs)
    assert store_place(loaded).url == theirs["BULKHEAD_STORE_URL"]
    assert "canary" not in repr(store_place(loaded)) + repr(loaded)
    (found,) = faults(tmp_path, MODELS, {"BULKHEAD_STORE_URL": "postgresql://u:canary@h"})
    assert found.startswith("BULKHEAD_STORE_URL: expected a database")


def test_commands_find_it_whatever_is_wrong_elsewhere(tmp_path: Path) -> None:
    text = '[vars]\nHOST = "db.internal"\n' + STORE.replace("db.internal", "${HOST}")
    path = written(tmp_path, text + '[[models]]\nid = "m"\nengine = "nonsense"\n')
    place = settings.locate(path, tmp_path / "state", environ={})
    found = store_place(place, {"PW": "secret"})
    assert (found.url, found.password) == (URL, "secret")
    assert "secret" not in repr(found)
    with pytest.raises(ConfigError, match="the secret PW is not set"):
        store_place(place, {})


def test_without_a_section_it_is_the_state_folder_s_file(tmp_path: Path) -> None:
    place = settings.locate(written(tmp_path, MODELS), tmp_path / "state", environ={})
    assert store_place(place, {}).url == ""


def test_an_environment_of_the_file_has_its_own(tmp_path: Path) -> None:
    staging = '[env.staging.store]\nurl = "postgresql://u@staging/db"\n[[env.staging.models]]\n'
    path = written(tmp_path, MODELS + staging + 'id = "m"\nengine = "fake"\n')
    place = settings.locate(path, tmp_path / "state", env="staging", environ={})
    assert store_place(place, {}).url == "postgresql://u@staging/db"
    bad = path.read_text().replace("postgresql://u@staging/db", "x")
    place = settings.locate(written(tmp_path, bad), tmp_path / "state", env="staging", environ={})
    with pytest.raises(ConfigError, match=r"env\.staging\.store\.url|store"):
        store_place(place, {})
