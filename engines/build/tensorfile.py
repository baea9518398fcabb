"""Safetensors files without a tensor library: their headers, single tensors, and joining several.

A file is the length of its header (8 bytes), the header in JSON, and the tensors' bytes.
"""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIZES: Mapping[str, int] = {"BF16": 2, "F16": 2, "F32": 4, "U8": 1}  # bytes an element
LONGEST_HEADER = 100_000_000  # bytes, as in the safetensors library
ALIGNMENT = 8
PIECE = 1 << 22  # bytes that are looked at together
# The bits that are all 1 in a NaN and in an infinity.
EXPONENTS: Mapping[str, tuple[str, int]] = {
    "BF16": ("<u2", 0x7F80),
    "F16": ("<u2", 0x7C00),
    "F32": ("<u4", 0x7F800000),
}


class BadTensorFile(Exception):
    """A file that is no safetensors file, or not a whole one; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one tensor lies. `start` counts from the beginning of its file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int  # bytes

    def read(self) -> NDArray[Any]:
        """Its numbers; BF16 as the float32 numbers that they are."""
        if self.dtype not in SIZES:
            raise BadTensorFile(f"{self.path}: dtype {self.dtype} is not read")
        with open(self.path, "rb") as file:
            file.seek(self.start)
            content = file.read(self.size)
        if self.dtype == "BF16":
            bits = np.frombuffer(content, np.uint16).astype(np.uint32) << np.uint32(16)
            return bits.view(np.float32).reshape(self.shape)
        kinds = {"F16": np.float16, "F32": np.float32, "U8": np.uint8}
        return np.frombuffer(content, kinds[self.dtype]).reshape(self.shape)

    def is_finite(self) -> bool:
        """Whether it has neither a NaN nor an infinity. Read in pieces: it may be large."""
        if self.dtype not in EXPONENTS or not self.size:
            return True
        kind, bits = EXPONENTS[self.dtype]
        content = np.memmap(self.path, np.uint8, "r", self.start, (self.size,))
        for at in range(0, self.size, PIECE):
            numbers = content[at : at + PIECE].view(kind)
            if (numbers & bits == bits).any():
                return False
        return True


def files_of(folder: Path) -> list[Path]:
    """The folder's files of tensors. Raises BadTensorFile: a pipe would be waited for, for ever."""
    paths = sorted(folder.glob("*.safetensors"))
    for path in paths:
        try:
            is_odd = not stat.S_ISREG(path.stat().st_mode)
        except OSError as error:
            raise BadTensorFile(f"cannot read {path}: {error.strerror}") from error
        if is_odd:
            raise BadTensorFile(f"cannot read {path}: it is no regular file")
    return paths


def entries_of(folder: Path) -> dict[str, Entry]:
    """All tensors of a folder's files by name. Raises BadTensorFile; there may be none."""
    found: dict[str, Entry] = {}
    for path in files_of(folder):
        try:
            entries = _entries(path)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadTensorFile(f"cannot read {path}: {error}") from error
        for name in found.keys() & entries.keys():
            raise BadTensorFile(f"{name!r} is in {found[name].path.name} and in {path.name}")
        found |= entries
    return found


def _entries(path: Path) -> dict[str, Entry]:
    length = path.stat().st_size
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if length < 8 or size > min(LONGEST_HEADER, length - 8):
            raise ValueError("the file is cut off, or no safetensors")
        header = json.loads(file.read(size))
    if not isinstance(header, dict):
        raise ValueError("its header is no object")
    header.pop("__metadata__", None)
    return {name: _entry(path, name, told, 8 + size, length) for name, told in header.items()}


def _entry(path: Path, name: str, told: Mapping[str, Any], body: int, length: int) -> Entry:
    start, stop = told["data_offsets"]
    shape = tuple(int(side) for side in told["shape"])
    if not all(type(number) is int for number in (start, stop, *told["shape"])):
        raise ValueError(f"tensor {name!r}: its place and shape are no whole numbers")
    if not 0 <= start <= stop <= length - body:
        raise ValueError(f"tensor {name!r} lies outside the file, which is cut off")
    if stop - start != math.prod(shape) * SIZES.get(told["dtype"], 0) and told["dtype"] in SIZES:
        raise ValueError(f"tensor {name!r}: {stop - start} bytes for the shape {shape}")
    return Entry(path, told["dtype"], shape, body + start, stop - start)


def join(parts: Sequence[Path], target: Path) -> None:
    """All tensors of some files in one, in the order that the safetensors library writes them."""
    entries = {name: entry for part in parts for name, entry in _entries(part).items()}
    # The widest numbers first: every tensor is aligned to its own.
    names = sorted(entries, key=lambda name: (-SIZES[entries[name].dtype], name))
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    described: dict[str, Any] = dict(header)
    for name in names:
        entry = entries[name]
        span = [offset, offset + entry.size]
        described[name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": span}
        offset += entry.size
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with open(target, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            _copy(entries[name], out)


def _copy(entry: Entry, out: Any) -> None:
    with open(entry.path, "rb") as file:
        file.seek(entry.start)
        left = entry.size
        while left:
            piece = file.read(min(left, 1 << 22))
            if not piece:
                raise BadTensorFile(f"{entry.path} became shorter while it was read")
            out.write(piece)
            left -= len(piece)
