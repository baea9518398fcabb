"""Checked certificates, copied to where a worker reads them: in the private runtime directory.

A worker that crashes tomorrow comes back with what was checked, whatever lies in the operator's
folder by then.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

from runtime.tls.certificates import Identity

PREFIX = "tls-"


class TlsFiles(NamedTuple):
    """The copies of one identity. `client_ca` is None where no client is asked for one."""

    folder: Path
    cert: Path
    key: Path
    client_ca: Path | None


class TlsFolder:
    """The copies of one gateway, which alone has this directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0

    def add(self, identity: Identity) -> TlsFiles:
        """Copy an identity; mode 0600."""
        self._count += 1
        folder = self._directory / f"{PREFIX}{os.getpid()}-{self._count}"
        shutil.rmtree(folder, ignore_errors=True)  # of a process of that pid that was killed
        folder.mkdir(mode=0o700)
        return TlsFiles(
            folder,
            _written(folder / "cert.pem", identity.chain),
            _written(folder / "key.pem", identity.key),
            _written(folder / "ca.pem", identity.authorities) if identity.authorities else None,
        )

    def keep(self, files: TlsFiles | None) -> None:
        """Remove all others."""
        for folder in self._directory.glob(f"{PREFIX}*"):
            if files is None or folder != files.folder:
                shutil.rmtree(folder, ignore_errors=True)


def _written(path: Path, data: bytes) -> Path:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
    return path
