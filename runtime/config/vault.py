"""Secrets at rest: `secrets.json` in the state folder, each value sealed with AES-256-GCM.

The key is derived from the root secret, so a copy of this file alone gives nothing away. A value is
bound to its name: two sealed values can't be exchanged. Names and times stand in the open.
"""

from __future__ import annotations

import datetime
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import MsgspecError, Struct, json

from runtime import durable, keyring, state

FILE = "secrets.json"
LABEL = "vault"
FORMAT = 1
NONCE_BYTES = 12
MAX_BYTES = 64 * 1024


class VaultError(Exception):
    """The vault can't be used as it is; the message says why."""


class Sealed(Struct, frozen=True, kw_only=True):
    """One secret as it is kept."""

    set_at: datetime.datetime
    nonce: bytes
    sealed: bytes


class Contents(Struct, kw_only=True):
    """The file. `format` is for those who read it later."""

    format: int = FORMAT
    secrets: dict[str, Sealed] = {}


class Vault:
    """The secrets of one state folder. Nothing is made before the first `put`."""

    def __init__(self, state_dir: Path, root_secret: str = "") -> None:
        self._path = state_dir / FILE
        self._root_secret = root_secret

    def names(self) -> dict[str, datetime.datetime]:
        """Which secrets there are, and when each was set."""
        return {name: sealed.set_at for name, sealed in sorted(self._read().secrets.items())}

    def get(self, name: str) -> str | None:
        """A secret's value, or None. Raises VaultError if it can't be opened."""
        found = self._read().secrets.get(name)
        if found is None:
            return None
        lost = f"{self._path}: {name} was sealed with another root secret; put it there again"
        if self._is_shut():
            raise VaultError(lost)
        try:
            return self._cipher().decrypt(found.nonce, found.sealed, name.encode()).decode()
        except (InvalidTag, ValueError):  # a nonce of another size, or a value that isn't text
            raise VaultError(lost) from None

    def put(self, name: str, value: str) -> None:
        """Keep a value under this name, in place of an earlier one."""
        plain = value.encode()
        if not value.strip() or len(plain) > MAX_BYTES:
            raise VaultError(f"a secret has 1 to {MAX_BYTES} bytes")
        nonce = os.urandom(NONCE_BYTES)
        if self._read().secrets and self._is_shut():
            raise VaultError(f"the root secret that sealed {self._path} is gone; put it back")
        with self._changing() as contents:
            contents.secrets[name] = Sealed(
                set_at=datetime.datetime.now(datetime.UTC).replace(microsecond=0),
                nonce=nonce,
                sealed=self._cipher().encrypt(nonce, plain, name.encode()),
            )

    def delete(self, name: str) -> bool:
        """Forget a secret; whether it was there."""
        if name not in self._read().secrets:
            return False
        with self._changing() as contents:
            return contents.secrets.pop(name, None) is not None

    def _is_shut(self) -> bool:
        """Whether there is no root secret. A new one would be made: it couldn't open anything."""
        return not self._root_secret and not keyring.path(self._path.parent).exists()

    def _cipher(self) -> AESGCM:
        return AESGCM(keyring.load(self._path.parent, self._root_secret).derive(LABEL))

    def _read(self) -> Contents:
        try:
            contents = json.decode(self._path.read_bytes(), type=Contents)
        except FileNotFoundError:
            return Contents()
        except (MsgspecError, RecursionError) as fault:
            raise VaultError(f"{self._path} can't be read: {fault}") from None
        if contents.format != FORMAT:
            raise VaultError(
                f"{self._path} has unknown format {contents.format}; this version knows {FORMAT}"
            )
        return contents

    @contextmanager
    def _changing(self) -> Iterator[Contents]:
        """The contents, written back whole; two commands at once wait for each other."""
        state.prepare(self._path.parent)
        with (self._path.parent / "secrets.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            contents = self._read()
            yield contents
            durable.replace(self._path, json.format(json.encode(contents), indent=2) + b"\n")
