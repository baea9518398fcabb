"""Which of our files run inside TensorRT-LLM: the guard's modules, and all of ours they import.

Its environment has another Python and other packages than ours, and nothing of ours must shadow
them. So these files alone are put where it looks for modules.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ENTRIES = ("engines.trtllm.guard", "engines.trtllm.hook")
_ROOT = Path(__file__).parents[2]


def files() -> dict[str, str]:
    """Path below the folder that goes on PYTHONPATH, to the file's text; in order of path."""
    found: set[Path] = set()
    waiting = [path for entry in ENTRIES for path in _paths(entry)]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting.extend(p for name in _imports(path) for p in _paths(name))
    return {path.relative_to(_ROOT).as_posix(): path.read_text() for path in sorted(found)}


def _imports(path: Path) -> Iterator[str]:
    """What it imports of ours, wherever in the file; also names that are no module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _paths(module: str) -> list[Path]:
    """Its file and those of its packages; none where it isn't one of our modules."""
    parts = module.split(".")
    if parts[0] != "engines":
        return []
    place = _ROOT.joinpath(*parts)
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    if not file.is_file():
        return []
    packages = [_ROOT.joinpath(*parts[:depth], "__init__.py") for depth in range(1, len(parts))]
    return [*packages, file]
