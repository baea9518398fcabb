"""What a build has done so far, so that the next one goes on there if this one is killed.

A folder beside the artefact's place: the plan's key, and a file for each layer that is finished.
Another plan's parts are thrown away.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from engines.build.publish import sha256

KEY = "key"


class Parts:
    """Files by name; each is there whole, with its digest in its name, or not at all."""

    def __init__(self, dest: Path, key: str) -> None:
        self.folder = dest.parent / f".{dest.name}.parts"
        if self._key() != key:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            (self.folder / KEY).write_text(key)

    def _key(self) -> str:
        try:
            return (self.folder / KEY).read_text()
        except OSError:
            return ""

    def put(self, name: str, tensors: dict[str, Tensor]) -> None:
        """Keep a part; an older one of that name goes."""
        for old in self.folder.glob(f"{name}-*"):
            old.unlink()
        draft = self.folder / "draft"
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, draft)
        os.rename(draft, self.folder / f"{name}-{sha256(draft)}.safetensors")

    def get(self, name: str) -> dict[str, Tensor] | None:
        """A part that is there and whole."""
        path = self.path(name)
        if path is None:
            return None
        try:
            return load_file(path)
        except (OSError, SafetensorError):
            return None

    def path(self, name: str) -> Path | None:
        """Where a part lies, if its bytes are those that were written."""
        for path in self.folder.glob(f"{name}-*.safetensors"):
            if path.stem.removeprefix(f"{name}-") == sha256(path):
                return path
        return None

    def num_layers(self) -> int:
        """How many an earlier run has left."""
        return len(list(self.folder.glob("layer-*.safetensors")))

    def paths(self) -> list[Path]:
        """All of them."""
        return sorted(self.folder.glob("*.safetensors"))

    def remove(self) -> None:
        """They have been joined."""
        shutil.rmtree(self.folder, ignore_errors=True)
