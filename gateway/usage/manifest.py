"""What an export's files hold, signed: names, digests, rows, sums, and what it was made of.

Signed with Ed25519 by a key that is derived from the root secret, so that a file can be shown to be
the one this installation wrote. Nothing in it depends on when it was written: the same period,
bound and options give the same manifest.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from gateway.usage.calendar import seconds
from gateway.usage.export import Export, Form
from gateway.usage.selection import Selection
from gateway.usage.totals import Sums
from runtime.keyring import Keyring

KEY_LABEL = "export-manifest"
CHUNK = 1 << 20


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One file: its bytes, and what is in it."""

    name: str
    bytes: int
    sha256: str
    rows: int
    sums: Sums  # by currency and cost column
    first_seq: int | None
    last_seq: int | None
    price_table_sha256: str
    tenant: str | None  # an id; None: everyone's


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """What is signed."""

    version: Literal[1] = 1
    start: str
    end: str
    seq_bound: int
    format: str
    focus_version: str | None
    granularity: str | None
    project: str | None
    files: tuple[FileEntry, ...]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The contents, and who says so; key and signature in base64."""

    object: Literal["bulkhead.export.manifest"] = "bulkhead.export.manifest"
    contents: msgspec.Raw
    public_key: str
    signature: str


class BadManifest(Exception):
    """A manifest that can't be trusted, or files that aren't the ones it tells of."""


def entry_of(name: str, size: int, sha256: str, export: Export) -> FileEntry:
    """A file that an export was written to, whole."""
    totals = export.totals
    return FileEntry(
        name=name,
        bytes=size,
        sha256=sha256,
        rows=totals.rows,
        sums=totals.sums(),
        first_seq=totals.first_seq,
        last_seq=totals.last_seq,
        price_table_sha256=totals.price_table_sha256(),
        tenant=export.selection.tenant_id,
    )


class Digest:
    """The size and SHA-256 of an export that nobody keeps."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self.size = 0

    def add(self, chunk: bytes) -> None:
        """Take the next piece."""
        self._sha256.update(chunk)
        self.size += len(chunk)

    @property
    def sha256(self) -> str:
        """In hexadecimal."""
        return self._sha256.hexdigest()


def manifest_of(export: Export, digest: Digest, key: Ed25519PrivateKey) -> bytes:
    """The signed manifest of an export that was read to its end; it's called by its form alone."""
    entry = entry_of(f"usage.{export.form.suffix}", digest.size, digest.sha256, export)
    return sign(contents_of(export.selection, export.form, [entry]), key)


def contents_of(selection: Selection, form: Form, entries: Sequence[FileEntry]) -> Contents:
    """What a manifest says of the files of one selection, which may differ in their tenants."""
    return Contents(
        start=seconds(selection.start_us),
        end=seconds(selection.end_us),
        seq_bound=selection.bound,
        format=form.format,
        focus_version=form.focus_version if form.is_focus else None,
        granularity=form.granularity if form.is_focus else None,
        project=selection.project_id,
        files=tuple(entries),
    )


def signing_key(root: Keyring) -> Ed25519PrivateKey:
    """The key of an installation's exports."""
    return Ed25519PrivateKey.from_private_bytes(root.derive(KEY_LABEL))


def public_key(key: Ed25519PrivateKey) -> str:
    """Its public half, in base64."""
    return base64.b64encode(key.public_key().public_bytes_raw()).decode()


def sign(contents: Contents, key: Ed25519PrivateKey) -> bytes:
    """The manifest as a file."""
    raw = msgspec.Raw(msgspec.json.encode(contents))
    signature = base64.b64encode(key.sign(_signed(raw))).decode()
    manifest = Manifest(contents=raw, public_key=public_key(key), signature=signature)
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def verify(path: Path, trusted_key: str) -> Contents:
    """The contents of a manifest of the holder of `trusted_key`, whose files beside it are right.

    Raises BadManifest, which says what is wrong, or OSError.
    """
    contents = read(path.read_bytes(), trusted_key)
    for entry in contents.files:
        _check_file(path.parent, entry)
    return contents


def read(data: bytes, trusted_key: str) -> Contents:
    """The contents, if the holder of `trusted_key` signed them. Raises BadManifest."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.MsgspecError as fault:
        raise BadManifest(f"is no manifest of an export: {fault}") from None
    if manifest.public_key != trusted_key:
        raise BadManifest(
            f"was signed by {manifest.public_key}, not by {trusted_key}: it is another "
            "installation's, or the root secret was another; name a key to trust by --public-key"
        )
    try:
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(trusted_key, validate=True))
        key.verify(base64.b64decode(manifest.signature, validate=True), _signed(manifest.contents))
    except (InvalidSignature, ValueError):
        raise BadManifest("its signature is wrong: it was changed after it was signed") from None
    return msgspec.json.decode(manifest.contents, type=Contents)


def digest(path: Path) -> tuple[int, str]:
    """A file's size and SHA-256."""
    sha256, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            sha256.update(chunk)
            size += len(chunk)
    return size, sha256.hexdigest()


def _check_file(folder: Path, entry: FileEntry) -> None:
    if Path(entry.name).name != entry.name:
        raise BadManifest(f"names {entry.name!r}, which isn't a file beside it")
    size, sha256 = digest(folder / entry.name)
    if size != entry.bytes:
        raise BadManifest(f"{entry.name} has {size} bytes, not {entry.bytes}")
    if sha256 != entry.sha256:
        raise BadManifest(f"{entry.name} was changed: its SHA-256 is {sha256}, not {entry.sha256}")


def _signed(contents: msgspec.Raw) -> bytes:
    """One form of the same contents, however they are laid out in a file."""
    return msgspec.json.encode(msgspec.json.decode(contents), order="sorted")
