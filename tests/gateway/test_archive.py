"""A backup's form: what was written is what is read, and anything else is refused."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from gateway.backups import archive, backup
from gateway.backups.archive import BackupError
from gateway.store.connection import open_for_writing
from gateway.store.current import HEAD
from gateway.store.migrate import migrate
from runtime import keyring
from runtime.config.place import Place
from tests.gateway.accounts import add_tenant

Member = tuple[tarfile.TarInfo, bytes]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    state = tmp_path / "state"
    state.mkdir()
    migrate(state / "bulkhead.db")
    with closing(open_for_writing(state / "bulkhead.db")) as db:
        add_tenant(db)
    keyring.load(state)
    (state / "deployments").mkdir()
    (state / "deployments" / "0001.toml").write_text("one")
    (state / "deployments" / "current").write_text("{}")
    (state / "deployments" / "lock").write_text("")
    (state / "models" / "m").mkdir(parents=True)
    (state / "models" / "m" / "model.safetensors").write_text("large")
    (state / "node.lock").write_text("1")
    return Place(config_path="", state_dir=state)


@pytest.fixture
def file(place: Place, tmp_path: Path) -> Path:
    backup.create(place, tmp_path / "b.tar.gz")
    return tmp_path / "b.tar.gz"


def members(file: Path) -> list[Member]:
    with tarfile.open(file) as tar:
        return [(member, _content(tar, member)) for member in tar]


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    source = tar.extractfile(member)
    assert source is not None
    return source.read()


def write(file: Path, found: list[Member]) -> None:
    with tarfile.open(file, "w:gz") as tar:
        for member, data in found:
            tar.addfile(member, io.BytesIO(data))


def test_what_is_written_is_read(place: Place, file: Path, tmp_path: Path) -> None:
    manifest = archive.unpack(file, tmp_path / "out")
    assert archive.verify(file) == manifest
    assert (manifest.format, manifest.store.tenants, manifest.store.revision) == (1, 1, HEAD)
    names = ["bulkhead.db", "deployments/0001.toml", "deployments/current", "root-secret"]
    assert [part.name for part in manifest.parts] == names
    assert archive.files_of(tmp_path / "out") == names[1:]
    for name in names[1:]:
        assert (tmp_path / "out" / name).read_bytes() == (place.state_dir / name).read_bytes()
    modes = {path.stat().st_mode for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert {stat.S_IMODE(mode) for mode in modes | {file.stat().st_mode}} == {0o600}


def test_the_root_secret_is_told_apart_and_not_told(place: Place, file: Path) -> None:
    manifest = archive.verify(file)
    secret = (place.state_dir / "root-secret").read_text().strip()
    assert secret not in str(manifest)
    assert manifest.root == backup.root_of(place)
    (place.state_dir / "root-secret").write_text("ab" * 32)
    assert manifest.root != backup.root_of(place)
    elsewhere = Place(config_path="", state_dir=place.state_dir, root_secret=secret)
    assert manifest.root == backup.root_of(elsewhere)


def test_a_backup_that_can_t_be_made_leaves_the_old_one(place: Place, file: Path) -> None:
    before = file.read_bytes()
    (place.state_dir / "bulkhead.db").write_bytes(b"not a database at all" * 500)
    with pytest.raises(Exception, match=r"bulkhead\.db"):
        backup.create(place, file)
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir() if path.name.startswith(".")] == []
    assert not list(place.state_dir.glob(".backup-*"))


def test_without_a_database_there_is_nothing_to_back_up(tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="holds no database"):
        backup.create(Place(config_path="", state_dir=tmp_path), tmp_path / "b.tar.gz")


def test_what_a_killed_backup_left_is_cleared(place: Place) -> None:
    left = place.state_dir / ".backup-x1"
    left.mkdir()
    (left / "bulkhead.db").touch()
    with backup.alone(place.state_dir):
        assert not left.exists()


def renamed(found: list[Member], old: str, new: str) -> list[Member]:
    for member, _ in found:
        member.name = new if member.name == old else member.name
    return found


def linked(found: list[Member]) -> list[Member]:
    member = next(member for member, _ in found if member.name == "root-secret")
    member.type, member.linkname, member.size = tarfile.SYMTYPE, "/etc/passwd", 0
    return found


def edited(found: list[Member], old: bytes, new: bytes) -> list[Member]:
    member, data = found[0]
    member.size = len(data.replace(old, new))
    return [(member, data.replace(old, new)), *found[1:]]


def self_linked(found: list[Member]) -> list[Member]:
    member, _ = found[0]
    member.type, member.linkname, member.size = tarfile.SYMTYPE, member.name, 0
    return found


FORGERIES: dict[str, tuple[Callable[[list[Member]], list[Member]], str]] = {
    "no manifest": (lambda found: found[1:], "doesn't begin with manifest.json"),
    "manifest last": (lambda found: [*found[1:], found[0]], "doesn't begin with manifest.json"),
    "a file is missing": (lambda found: found[:-1], "it lacks root-secret"),
    "a file is twice": (lambda found: [*found, found[-1]], "its manifest doesn't: 'root-secret'"),
    "a file too many": (
        lambda found: [*found, (tarfile.TarInfo("evil"), b"")],
        "its manifest doesn't: 'evil'",
    ),
    "another content": (
        lambda found: [*found[:-1], (found[-1][0], found[-1][1][::-1])],
        "root-secret isn't what the manifest says",
    ),
    "a link": (linked, "its manifest doesn't: 'root-secret'"),
    "a way out": (
        lambda found: renamed(
            edited(found, b'"root-secret"', b'"../../evil"'), "root-secret", "../../evil"
        ),
        "names a file that no backup has: '../../evil'",
    ),
    "a way out of a folder": (
        lambda found: edited(found, b"deployments/current", b"deployments/../x.json"),
        "names a file that no backup has",
    ),
    "a newer format": (lambda found: edited(found, b'"format": 1', b'"format": 2'), "has format 2"),
    "a manifest that is a link": (self_linked, "doesn't begin with manifest.json"),
    "JSON without a bottom": (
        lambda found: edited(found, b"{", b'{"z": ' + b"[" * 100_000),
        "isn't understood",
    ),
    "no JSON": (lambda found: edited(found, b"{", b"["), "isn't understood"),
}


@pytest.mark.parametrize(("forge", "told"), FORGERIES.values(), ids=FORGERIES)
def test_what_is_no_backup_of_ours_is_refused(
    file: Path, tmp_path: Path, forge: Callable[[list[Member]], list[Member]], told: str
) -> None:
    write(file, forge(members(file)))
    with pytest.raises(BackupError, match=told):
        archive.unpack(file, tmp_path / "out" / "in")
    outside = {path.name for path in tmp_path.iterdir()}
    assert outside <= {"state", "b.tar.gz", "out"}


def test_damage_anywhere_is_found(file: Path) -> None:
    """A flipped byte, in the padding at the end too, or an end that is missing."""
    data = file.read_bytes()
    for position in (*range(20, len(data) - 8, len(data) // 25), len(data) - 6):
        damaged = data[:position] + bytes([data[position] ^ 0xFF]) + data[position + 1 :]
        if is_same(data, damaged):
            continue  # zeros copied from elsewhere are zeros
        file.write_bytes(damaged)
        with pytest.raises(BackupError):
            archive.verify(file)
        file.write_bytes(data[:position])
        with pytest.raises(BackupError):
            archive.verify(file)


def is_same(one: bytes, other: bytes) -> bool:
    """Whether both unpack to the same."""
    try:
        return gzip.decompress(one) == gzip.decompress(other)
    except (OSError, EOFError, zlib.error):
        return False


def test_a_file_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        archive.verify(tmp_path / "none.tar.gz")
    assert os.listdir(tmp_path) == []
