"""The one root secret, and the keys derived from it by label (HKDF-SHA256, RFC 5869).

The secret is 32 bytes: made on the first start and kept in the state folder (mode 0600), or given
in the environment, where replicas must share it. It is never logged and never leaves as itself.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from runtime import durable

SECRET_BYTES = 32


class BadRootSecret(Exception):
    """The root secret is unreadable or of the wrong size."""


class Keyring:
    """Derives keys by label. The same secret and label give the same key, on every replica."""

    def __init__(self, root: bytes) -> None:
        if len(root) != SECRET_BYTES:
            raise BadRootSecret(f"the root secret must be {SECRET_BYTES} bytes, found {len(root)}")
        self._root = root

    def derive(self, label: str, length: int = 32) -> bytes:
        """`length` bytes for this label alone."""
        info = b"bulkhead/1/" + label.encode()
        return HKDF(algorithm=SHA256(), length=length, salt=None, info=info).derive(self._root)

    def __repr__(self) -> str:
        return "Keyring(…)"


def load(state_dir: Path, from_environment: str = "") -> Keyring:
    """The keyring of a state folder, made if this is the first start. Raises BadRootSecret."""
    if from_environment:
        return Keyring(_from_hex(from_environment, "BULKHEAD_ROOT_SECRET"))
    file = path(state_dir)
    if not file.exists():
        write_once(file, secrets.token_hex(SECRET_BYTES))
    if file.stat().st_mode & 0o077:
        raise BadRootSecret(f"{file} can be read by others; make it private with chmod 600")
    return Keyring(_from_hex(file.read_text("ascii", "replace").strip(), str(file)))


def path(state_dir: Path) -> Path:
    """Where a state folder keeps its root secret."""
    return state_dir / "root-secret"


def write_once(path: Path, text: str) -> str:
    """Create `path` (0600) with `text`, whole or not at all; the first writer wins.

    Returns what the file holds, which is another's text if another was first.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with durable.naming(path), os.fdopen(handle, "w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)  # unlike rename, link never replaces
        except FileExistsError:
            return path.read_text("utf-8").strip()
    finally:
        draft.unlink()
    return text


def _from_hex(text: str, where: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise BadRootSecret(f"{where} must hold {SECRET_BYTES * 2} hexadecimal digits") from None
