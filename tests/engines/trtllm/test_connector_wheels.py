"""The guard has the shape that others gave their connectors, who run them in TensorRT-LLM."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any

import pytest

import engines.trtllm
from tests.engines.trtllm.connector_wheels import (
    BASES,
    PACKAGES,
    connectors,
    imports,
    methods,
    read,
    recorded,
    wheels_in,
)
from tests.engines.trtllm.stub_tensorrt_llm import EARLIER, LATER

WHEELS = "BULKHEAD_CONNECTOR_WHEELS"  # names a folder with their wheels
INSIDE = Path(engines.trtllm.__file__).parent
OTHERS = [
    pytest.param(connector, id=name)
    for package in recorded().values()
    for name, connector in package["connectors"].items()
]


def parsed(name: str) -> ast.Module:
    return ast.parse((INSIDE / name).read_text())


def ours() -> dict[str, dict[str, list[str]]]:
    """The guard's methods, by the interface that they are of."""
    found = {c.bases[0].id: methods(c) for c in connectors(parsed("guard.py"))}  # type: ignore[attr-defined]
    assert found.keys() == BASES
    return found


def test_they_are_where_the_guard_looks_first() -> None:
    paths = {path for package in recorded().values() for path in package["imports"]}
    assert list(imports(parsed("guard.py")))[:1] == list(paths)


@pytest.mark.parametrize("other", OTHERS)
def test_what_another_connector_has_the_guard_has_with_the_same_parameters(
    other: dict[str, Any],
) -> None:
    guard = ours()[other["base"]]
    assert {name: guard.get(name) for name in other["methods"]} == other["methods"]


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("source", [EARLIER, LATER], ids=["earlier", "later"])
def test_what_our_stand_in_demands_others_have(other: dict[str, Any], source: str) -> None:
    """So the interface that the guard is tested with isn't one of our own making."""
    [abstract] = [
        {f.name: [a.arg for a in f.args.args[1:]] for f in _abstract(c)}
        for c in ast.parse(source).body
        if isinstance(c, ast.ClassDef) and c.name == other["base"]
    ]
    assert abstract.keys() <= other["methods"].keys()
    assert {name: other["methods"][name] for name in abstract} == abstract


def _abstract(node: ast.ClassDef) -> list[ast.FunctionDef]:
    return [f for f in node.body if isinstance(f, ast.FunctionDef) and f.decorator_list]


@pytest.mark.parametrize(("variable", "kind"), [("data", "RequestData"), ("request", "LlmRequest")])
def test_what_the_guard_reads_of_a_request_others_read_too(variable: str, kind: str) -> None:
    """But for what it asks for with a default."""
    read_by_us = {
        node.attr
        for node in ast.walk(parsed("seen.py"))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == variable
    }
    read_by_others = {name for package in recorded().values() for name in package["reads"][kind]}
    assert read_by_us
    assert read_by_us <= read_by_others


@pytest.mark.parametrize("package", PACKAGES)
def test_the_recording_is_what_the_wheels_show(package: str) -> None:
    if not (folder := os.environ.get(WHEELS)):
        pytest.skip(f"{WHEELS} names no folder with the wheels of {', '.join(PACKAGES)}")
    wheels = wheels_in(Path(folder))
    assert package in wheels, f"no {package} in {folder}: {sorted(os.listdir(folder))}"
    assert read(package, wheels[package]) == recorded()[package]
