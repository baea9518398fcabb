"""What is in a backup, and its form: one private .tar.gz that says what it holds.

    manifest.json    what follows, with the digest of each; where it comes from
    bulkhead.db      the store
    root-secret, secrets.json, deployments/…    and the rest of FILES, as far as it is there

Weights are left out: they are fetched again. Whoever has a backup has the keys of its secrets.
"""

from __future__ import annotations

import datetime
import gzip
import hashlib
import io
import os
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO

from msgspec import MsgspecError, Struct, json

from gateway.store.backup import Facts, facts
from gateway.store.connection import DATABASE
from gateway.version import version
from runtime import durable

FORMAT = 1
MANIFEST = "manifest.json"
FILES = (
    "root-secret",
    "secrets.json",
    "admin-key",
    "demo-key",
    "deployments/current",
    "deployments/*.json",
    "deployments/*.toml",
    "crons/*.json",
    "tls/ca.key",  # the authority of `dev --https`; its leaf is made again
    "tls/ca.pem",
)
_CHUNK = 1024 * 1024
_MAX_MANIFEST = 16 * 1024 * 1024


class BackupError(Exception):
    """A backup can't be made or used; the message says why."""


class Part(Struct, frozen=True, kw_only=True):
    """A file of a backup."""

    name: str
    bytes: int
    sha256: str


class Manifest(Struct, frozen=True, kw_only=True):
    """What a backup says of itself."""

    format: int
    version: str  # of the Bulkhead that made it
    created_at: datetime.datetime
    root: str  # tells one root secret from another, and gives nothing away
    store: Facts
    parts: list[Part]


def pack(folder: Path, database: Path, root: str, out: IO[bytes]) -> Manifest:
    """Write the FILES of a folder and a copy of its store, which nobody changes meanwhile."""
    files = {name: (folder / name).read_bytes() for name in files_of(folder)}
    manifest = Manifest(
        format=FORMAT,
        version=version(),
        created_at=datetime.datetime.now(datetime.UTC),
        root=root,
        store=facts(database),
        parts=[
            Part(name=DATABASE, bytes=database.stat().st_size, sha256=_digest(database)),
            *(
                Part(name=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
                for name, data in files.items()
            ),
        ],
    )
    with tarfile.open(fileobj=out, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        _add(tar, MANIFEST, json.format(json.encode(manifest), indent=2), manifest)
        with database.open("rb") as file:
            tar.addfile(_member(DATABASE, database.stat().st_size, manifest), file)
        for name, data in files.items():
            _add(tar, name, data, manifest)
    return manifest


def verify(archive: Path) -> Manifest:
    """Read all of a backup and compare it with its manifest. Raises BackupError."""
    return _read(archive, None)


def unpack(archive: Path, folder: Path) -> Manifest:
    """The same, with its files written into `folder`, where they are private."""
    return _read(archive, folder)


def files_of(folder: Path) -> list[str]:
    """The names of the FILES that are in a folder, in order."""
    found = {path for pattern in FILES for path in folder.glob(pattern) if path.is_file()}
    return sorted(path.relative_to(folder).as_posix() for path in found)


def _add(tar: tarfile.TarFile, name: str, data: bytes, manifest: Manifest) -> None:
    tar.addfile(_member(name, len(data), manifest), io.BytesIO(data))


def _member(name: str, size: int, manifest: Manifest) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o600, int(manifest.created_at.timestamp())
    return member


def _read(archive: Path, folder: Path | None) -> Manifest:
    try:
        with gzip.open(archive) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
            members = iter(tar)
            manifest = _manifest(tar, next(members, None))
            awaited = {part.name: part for part in manifest.parts}
            for member in members:
                _take(tar, member, awaited.pop(member.name, None), folder)
            while stream.read(_CHUNK):  # to its end, where the checksum of all stands
                pass
    except (tarfile.TarError, zlib.error, gzip.BadGzipFile, EOFError) as fault:
        raise BackupError(f"{archive} is no whole .tar.gz: {fault}") from None
    except BackupError as fault:
        raise BackupError(f"{archive} can't be used: {fault}") from None
    if awaited:
        raise BackupError(f"{archive} can't be used: it lacks {', '.join(awaited)}")
    return manifest


def _manifest(tar: tarfile.TarFile, member: tarfile.TarInfo | None) -> Manifest:
    is_one = member is not None and member.name == MANIFEST and member.isreg()
    file = tar.extractfile(member) if is_one and member is not None else None
    if file is None:
        raise BackupError(f"it doesn't begin with {MANIFEST}, so it is no backup of Bulkhead's")
    try:
        manifest = json.decode(file.read(_MAX_MANIFEST), type=Manifest)
    except (MsgspecError, RecursionError) as fault:
        raise BackupError(f"its {MANIFEST} isn't understood: {fault}") from None
    if manifest.format != FORMAT:
        raise BackupError(
            f"it has format {manifest.format}, and this version knows {FORMAT}; use the Bulkhead "
            f"that made it ({manifest.version}), or a newer one"
        )
    for part in manifest.parts:
        if part.name != DATABASE and not any(_matches(part.name, pattern) for pattern in FILES):
            raise BackupError(f"it names a file that no backup has: {part.name[:80]!r}")
    return manifest


def _matches(name: str, pattern: str) -> bool:
    """As a path: a star is no way into another folder."""
    parts, patterns = name.split("/"), pattern.split("/")
    return (
        len(parts) == len(patterns)
        and not any(part in ("", ".", "..") for part in parts)
        and all(fnmatchcase(part, p) for part, p in zip(parts, patterns, strict=True))
    )


def _take(
    tar: tarfile.TarFile, member: tarfile.TarInfo, part: Part | None, folder: Path | None
) -> None:
    if part is None or not member.isreg():
        raise BackupError(f"it holds something that its manifest doesn't: {member.name[:80]!r}")
    source, digest = tar.extractfile(member), hashlib.sha256()
    assert source is not None
    with _sink(folder / part.name if folder else None) as out:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            out.write(chunk)
    if member.size != part.bytes or digest.hexdigest() != part.sha256:
        raise BackupError(f"{part.name} isn't what the manifest says: the file was damaged")


@contextmanager
def _sink(path: Path | None) -> Iterator[IO[bytes]]:
    if path is not None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    else:
        handle = os.open(os.devnull, os.O_WRONLY)
    with durable.naming(path or Path(os.devnull)), open(handle, "wb") as out:
        yield out


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
