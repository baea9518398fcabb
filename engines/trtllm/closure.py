"""What has to lie beside the YAML for the guard to load inside TensorRT-LLM: its own modules alone.

TensorRT-LLM's Python is another one, where Bulkhead isn't installed and where its dependencies
would shadow others. So the guard's modules are copied, with all those of ours that they import, as
their source says; no list has to be kept.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

OURS = "engines"
ROOT = Path(__file__).resolve().parents[2]  # the folder that holds our packages
GUARD = ("engines.trtllm.guard", "engines.trtllm.hook")


class NoModule(Exception):
    """A module that has to be copied isn't there. The message says which, and who imports it."""


def closure(modules: Sequence[str] = GUARD, root: Path = ROOT) -> dict[str, str]:
    """The source of modules and of all of ours that they import, by path. Raises NoModule."""
    found: dict[str, str] = {}
    todo = [(module, "asked for") for module in modules]
    while todo:
        module, importer = todo.pop()
        for path in _files(module, root, importer):
            if path in found:
                continue
            found[path] = (root / path).read_text("utf-8")
            importing = path.removesuffix(".py").replace("/", ".")
            todo += [(name, f"imported by {importing}") for name in _imports(found[path], root)]
    return dict(sorted(found.items()))


def _files(module: str, root: Path, importer: str) -> Iterator[str]:
    """A module's file, and those of the packages on the way to it."""
    parts = module.split(".")
    for end in range(1, len(parts)):
        yield "/".join((*parts[:end], "__init__.py"))
    path = "/".join(parts)
    if (root / path / "__init__.py").is_file():
        yield f"{path}/__init__.py"
    elif (root / f"{path}.py").is_file():
        yield f"{path}.py"
    else:
        raise NoModule(f"there is no module {module}, {importer}")


def _imports(source: str, root: Path) -> Iterator[str]:
    """Our modules that a source imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if _is_ours(alias.name))
        elif isinstance(node, ast.ImportFrom) and _is_ours(node.module or ""):
            yield str(node.module)
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name for name in names if _is_module(name, root))


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] == OURS


def _is_module(name: str, root: Path) -> bool:
    path = root / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()
