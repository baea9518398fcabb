"""A folder that is rendered into again: what an earlier time left there and no longer belongs goes.

A list beside the files says what was written, and each file's digest. Only what is on it is ever
removed, and only if it is still as it was written.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from engines.trtllm.rendered import Rendered, write

LIST = ".rendered.json"


class Gone(NamedTuple):
    """Files of an earlier time: those that were removed, and those that others have changed."""

    removed: tuple[str, ...]
    changed: tuple[str, ...]


def rewrite(found: Rendered, folder: Path) -> Gone:
    """Write it all, and remove what belongs there no more. Raises OSError."""
    before, now = _listed(folder), _digests(found)
    folder.mkdir(parents=True, exist_ok=True)
    _list(folder, before | now)  # so that what is written is on it, however this ends
    write(found, folder)
    old = sorted(name for name in before.keys() - now.keys() if _is_inside(folder, name))
    there = [name for name in old if os.path.lexists(folder / name)]
    removed = tuple(name for name in there if _digest(folder / name) == before[name])
    for name in removed:
        _remove(folder, name)
    _list(folder, now)
    return Gone(removed, tuple(name for name in there if name not in removed))


def _digests(found: Rendered) -> dict[str, str]:
    texts = {name: _of(text.encode()) for name, text in found.files.items()}
    return texts | {name: f"-> {target}" for name, target in found.links.items()}


def _digest(path: Path) -> str:
    """As the list has it; "" for what is neither a file nor a link."""
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return f"-> {path.readlink()}"
    return _of(path.read_bytes()) if stat.S_ISREG(mode) else ""


def _of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _is_ours(name: str) -> bool:
    """Whether a name is one as we write them, of a file below the folder."""
    path = PurePosixPath(name)
    is_below = bool(path.parts) and not path.is_absolute() and ".." not in path.parts
    return is_below and name == str(path) and name.isprintable()


def _is_inside(folder: Path, name: str) -> bool:
    """Whether no link leads out of the folder on the way to a file below it."""
    parent = PurePosixPath(name).parent
    return (folder / parent).resolve() == folder.resolve() / parent


def _remove(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with suppress(OSError):  # others are in it still
        for parent in PurePosixPath(name).parents:
            if parent.parts:
                (folder / parent).rmdir()


def _listed(folder: Path) -> dict[str, str]:
    """What was written the last time; {} where nobody can tell."""
    path = folder / LIST
    try:
        told = json.loads(path.read_bytes()) if stat.S_ISREG(path.lstat().st_mode) else {}
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(told, dict):
        return {}
    return {name: one for name, one in told.items() if isinstance(one, str) and _is_ours(name)}


def _list(folder: Path, digests: Mapping[str, str]) -> None:
    path = folder / LIST
    path.unlink(missing_ok=True)  # it may be a link, to a file that isn't ours
    path.write_text(json.dumps(digests, indent=1, sort_keys=True) + "\n", "utf-8")
