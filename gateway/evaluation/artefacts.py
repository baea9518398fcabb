"""Which folders hold weights made of the same source: `bulkhead build` writes down of what.

Told folders to look in. A file is taken for the same by its SHA-256, as build.json has it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import MsgspecError, Struct, json

from engines import regular

RECORD = "build.json"


class _Options(Struct):
    weights: str


class _Source(Struct):
    files: dict[str, str]  # SHA-256 by name


class _Record(Struct):
    options: _Options
    source: _Source


def relatives(folder: Path, places: Iterable[Path]) -> list[Path]:
    """Artefacts of this folder's weights; or, of an artefact, its source and its siblings.

    Artefacts that hold the source's weights unchanged are left out: they would add nothing.
    """
    own = _record(folder)
    found: dict[Path, Path] = {}
    for other in _folders(places):
        if other.samefile(folder) or other.resolve() in found:
            continue
        record = _record(other)
        if record is None:
            is_related = own is not None and _holds(other, own.source.files)
        elif record.options.weights == "bf16":
            is_related = False
        elif own is None:
            is_related = _holds(folder, record.source.files)
        else:
            is_related = record.source.files == own.source.files
        if is_related:
            found[other.resolve()] = other
    return list(found.values())


def _folders(places: Iterable[Path]) -> Iterator[Path]:
    for place in places:
        if place.is_dir():
            # One whose name begins with a dot is still being made.
            children = (child for child in place.iterdir() if not child.name.startswith("."))
            yield from sorted(child for child in children if (child / "config.json").is_file())


def _record(folder: Path) -> _Record | None:
    try:
        return json.decode(regular.read(folder / RECORD), type=_Record)
    except (OSError, MsgspecError):
        return None


def _holds(folder: Path, files: Mapping[str, str]) -> bool:
    """Whether these very files are there. The small ones are looked at first: they differ first."""
    paths = {folder / name: digest for name, digest in files.items()}
    if not paths or not all(path.is_file() for path in paths):
        return False
    by_size = sorted(paths, key=lambda path: path.stat().st_size)
    return all(_sha256(path) == paths[path] for path in by_size)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
