"""What the public packages that implement TensorRT-LLM's connector interface show of it.

Their wheels are read as text: their modules can't be imported without TensorRT-LLM. A script:
`python -m tests.engines.trtllm.connector_wheels FOLDER` reads the wheels in FOLDER and writes what
it found, names only, to `connector_wheels.json` beside this file, which the tests go by.
"""

from __future__ import annotations

import ast
import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).with_suffix(".json")
PACKAGES = {
    "kvbm-1.6.1": "kvbm/trtllm_integration/connector/",
    "lmcache-0.5.6": "lmcache/integration/tensorrt_llm/",
}
BASES = {"KvCacheConnectorScheduler", "KvCacheConnectorWorker"}
OBJECTS = {"scheduler_output": "RequestData", "request": "LlmRequest"}  # by a parameter's name


def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDED.read_text())
    return found


def wheels_in(folder: Path) -> dict[str, Path]:
    """Of the packages, those whose wheel is there."""
    found = {package: sorted(folder.glob(f"{package}-*.whl")) for package in PACKAGES}
    return {package: wheels[0] for package, wheels in found.items() if wheels}


def read(package: str, wheel: Path) -> dict[str, Any]:
    """Its connectors, whence they have their interfaces, and what they read of TensorRT-LLM."""
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.startswith(PACKAGES[package])]
        trees = [ast.parse(archive.read(name)) for name in names if name.endswith(".py")]
    classes = [c for tree in trees for c in connectors(tree)]
    return {
        "imports": sorted({module for tree in trees for module in imports(tree)}),
        "connectors": {c.name: {"base": base(c), "methods": methods(c)} for c in classes},
        "reads": {kind: sorted(names) for kind, names in reads(classes).items()},
    }


def connectors(tree: ast.AST) -> Iterator[ast.ClassDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and base(node):
            yield node


def base(node: ast.ClassDef) -> str:
    """The interface that it implements; "" for none."""
    return next((b.id for b in node.bases if isinstance(b, ast.Name) and b.id in BASES), "")


def methods(node: ast.ClassDef) -> dict[str, list[str]]:
    """Public ones, by name: their parameters but `self`."""
    functions = [item for item in node.body if isinstance(item, ast.FunctionDef)]
    return {f.name: [a.arg for a in f.args.args[1:]] for f in functions if f.name[0] != "_"}


def imports(tree: ast.AST) -> Iterator[str]:
    """Modules that a connector's interface comes from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and BASES & {alias.name for alias in node.names}:
            yield node.module or ""


def reads(classes: list[ast.ClassDef]) -> dict[str, set[str]]:
    """Names of what is read of a scheduled request and of a request."""
    found: dict[str, set[str]] = {kind: set() for kind in OBJECTS.values()}
    for function in (n for c in classes for n in ast.walk(c) if isinstance(n, ast.FunctionDef)):
        variables = dict(_variables(function))
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                kind = variables.get(node.value.id)
                if kind:
                    found[kind].add(node.attr)
    return found


def _variables(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Each name in it that stands for a request, or for one of those that are scheduled."""
    if any(argument.arg == "request" for argument in function.args.args):
        yield "request", OBJECTS["request"]
    for node in ast.walk(function):
        if isinstance(node, ast.For | ast.comprehension) and isinstance(node.target, ast.Name):
            sources = {n.id for n in ast.walk(node.iter) if isinstance(n, ast.Name)}
            if sources & {"scheduler_output", "output"}:
                yield node.target.id, OBJECTS["scheduler_output"]


if __name__ == "__main__":
    wheels = wheels_in(Path(sys.argv[1]))
    assert wheels.keys() == PACKAGES.keys(), f"only {sorted(wheels)} there"
    told = {package: read(package, wheel) for package, wheel in wheels.items()}
    RECORDED.write_text(json.dumps(told, indent=2, sort_keys=True) + "\n")
