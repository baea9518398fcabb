"""Manifests: signed, checked file by file, and of the same bytes each time."""

from __future__ import annotations

import json
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

from gateway.store.connection import open_for_writing, transaction
from gateway.store.migrate import migrate
from gateway.usage import files
from gateway.usage.calendar import moment_of
from gateway.usage.export import FORMATS, GRANULARITIES, VERSIONS, Form
from gateway.usage.manifest import BadManifest, public_key, signing_key, verify
from runtime.keyring import Keyring
from tests.gateway.usage.history import (
    MICROSECONDS,
    NAMES,
    NOVEMBER,
    OCTOBER,
    TENANTS,
    History,
    fill,
)

KEY = signing_key(Keyring(b"r" * 32))
PUBLIC = public_key(KEY)
ORDER = files.Order(moment_of(OCTOBER), moment_of(NOVEMBER), Form("focus"), NAMES)
MANIFEST = "usage-tenants-20261001T0000Z-20261101T0000Z.focus-1.2.csv.manifest.json"
FILE = "usage-name of tn_1-20261001T0000Z-20261101T0000Z.focus-1.2.csv"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    migrate(path)
    with closing(open_for_writing(path)) as db, transaction(db):
        fill(db)
    return path


@pytest.fixture
def out(path: Path, tmp_path: Path) -> Path:
    out = tmp_path / "out"
    files.write(out, path, ORDER, KEY)
    return out


def test_a_manifest_names_its_files_and_what_is_in_them(out: Path) -> None:
    contents = verify(out / MANIFEST, PUBLIC)
    assert [entry.tenant for entry in contents.files] == list(TENANTS)
    assert sorted(path.name for path in out.iterdir()) == sorted(
        [MANIFEST, *(entry.name for entry in contents.files)]
    )
    assert (contents.start, contents.end) == ("2026-10-01T00:00:00Z", "2026-11-01T00:00:00Z")
    assert (contents.format, contents.focus_version, contents.granularity) == (
        "focus",
        "1.2",
        "hour",
    )
    for entry in contents.files:
        assert entry.last_seq is not None
        assert 0 < entry.last_seq <= contents.seq_bound
        assert set(entry.sums) <= {"EUR", "USD"}


def test_what_was_changed_is_found(out: Path) -> None:
    with (out / FILE).open("r+b") as file:
        file.seek(-3, 2)
        file.write(b"9")
    with pytest.raises(BadManifest, match="was changed: its SHA-256"):
        verify(out / MANIFEST, PUBLIC)
    with (out / FILE).open("ab") as file:
        file.write(b"one more")
    with pytest.raises(BadManifest, match="bytes, not"):
        verify(out / MANIFEST, PUBLIC)
    (out / FILE).unlink()
    with pytest.raises(FileNotFoundError):
        verify(out / MANIFEST, PUBLIC)


@pytest.mark.parametrize(
    ("old", "new"),
    [('"rows": ', '"rows": 1'), ('"seq_bound": ', '"seq_bound": 1'), ("USD", "EUR")],
)
def test_a_changed_manifest_is_not_ours(out: Path, old: str, new: str) -> None:
    text = (out / MANIFEST).read_text()
    (out / MANIFEST).write_text(text.replace(old, new, 1))
    with pytest.raises(BadManifest, match="changed after it was signed"):
        verify(out / MANIFEST, PUBLIC)


def test_a_field_that_was_added_is_found(out: Path) -> None:
    manifest = json.loads((out / MANIFEST).read_text())
    manifest["contents"]["more"] = 1
    (out / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(BadManifest, match="changed after it was signed"):
        verify(out / MANIFEST, PUBLIC)


def test_how_it_is_laid_out_does_not_matter(out: Path) -> None:
    (out / MANIFEST).write_text(json.dumps(json.loads((out / MANIFEST).read_text())))
    verify(out / MANIFEST, PUBLIC)


def test_another_installations_manifest_is_told_as_such(out: Path) -> None:
    other = public_key(signing_key(Keyring(b"s" * 32)))
    with pytest.raises(BadManifest, match="another installation's"):
        verify(out / MANIFEST, other)
    (out / MANIFEST).write_text("{}")
    with pytest.raises(BadManifest, match="is no manifest"):
        verify(out / MANIFEST, PUBLIC)


def test_what_is_complete_is_not_written_again(path: Path, out: Path) -> None:
    (out / FILE).write_text("as it was sent")
    assert files.write(out, path, ORDER, KEY) == []
    assert (out / FILE).read_text() == "as it was sent"


def test_a_run_after_one_that_failed_writes_the_same(
    path: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though more was closed meanwhile, in that very period."""
    order = files.Order(moment_of(NOVEMBER), moment_of(NOVEMBER + MICROSECONDS), Form(), NAMES)
    whole, failed = tmp_path / "whole", tmp_path / "failed"
    files.write(whole, path, order, KEY)
    with monkeypatch.context() as patched:
        patched.setattr(files, "sign", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            files.write(failed, path, order, KEY)
    with closing(open_for_writing(path)) as db, transaction(db):
        later = History(db)
        later.number = 10_000
        later.requests(20, NOVEMBER)
    assert len(files.write(failed, path, order, KEY)) == 2
    assert contents(failed) == contents(whole)


def test_orders_that_differ_have_files_that_differ(path: Path, tmp_path: Path) -> None:
    forms = [
        Form(format, version, granularity)
        for format, version, granularity in product(FORMATS, VERSIONS, GRANULARITIES)
        if format in ("focus", "parquet") or (version, granularity) == ("1.2", "hour")
    ]
    period, out = (moment_of(OCTOBER), moment_of(NOVEMBER)), tmp_path / "out"
    written = [
        file
        for form, together in product(forms, (True, False))
        for file in files.write(out, path, files.Order(*period, form, NAMES, together), KEY)
    ]
    assert len(written) == len(set(written)) == len(forms) * 3
    assert len(list(out.glob("*.manifest.json"))) == len(forms) * 2
    assert not list(out.glob(".*"))


def test_all_tenants_in_one_file(path: Path, tmp_path: Path) -> None:
    order = files.Order(
        moment_of(OCTOBER), moment_of(NOVEMBER), Form("parquet", "1.4"), NAMES, together=True
    )
    (written,) = files.write(tmp_path / "all", path, order, KEY)
    assert written.name == "usage-20261001T0000Z-20261101T0000Z.focus-1.4.parquet"
    manifest = written.with_name(f"{written.name}.manifest.json")
    (entry,) = verify(manifest, PUBLIC).files
    assert entry.tenant is None


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
