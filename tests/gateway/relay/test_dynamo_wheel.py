"""What NVIDIA Dynamo does with a tenant's salt, read in its wheel: as `kind = "dynamo"` counts on.

The wheel is a release's, in the folder that BULKHEAD_CONNECTOR_WHEELS names; nothing is imported.
"""

from __future__ import annotations

import ast
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.config.attached import KINDS

WHEELS = "BULKHEAD_CONNECTOR_WHEELS"
Parsed = Callable[[str], ast.Module]


@pytest.fixture(scope="module")
def parsed() -> Parsed:
    """A module of its, by its path in the wheel."""
    folder = os.environ.get(WHEELS)
    if not folder:
        pytest.skip(f"{WHEELS} names no folder with the wheel of ai-dynamo")
    (wheel,) = Path(folder).glob("ai_dynamo-*.whl")

    def parse(name: str) -> ast.Module:
        with zipfile.ZipFile(wheel) as files:
            return ast.parse(files.read(name))

    return parse


def texts(tree: ast.AST) -> list[str]:
    """Every string in it, in order."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    nodes.sort(key=lambda node: (node.lineno, node.col_offset))
    return [node.value for node in nodes if isinstance(node.value, str)]


def test_tensorrt_llm_s_worker_takes_the_salt_of_the_router_and_hands_it_to_the_engine(
    parsed: Parsed,
) -> None:
    helpers = parsed("dynamo/trtllm/utils/request_utils.py")
    (reads,) = [
        node
        for node in ast.walk(helpers)
        if isinstance(node, ast.FunctionDef) and node.name == "request_cache_salt"
    ]
    found = [text for text in texts(reads) if text in ("routing", KINDS["dynamo"].inside)]
    assert found[0] == "routing"
    assert KINDS["dynamo"].inside in found
    handler = parsed("dynamo/trtllm/request_handlers/handler_base.py")
    assert any(
        isinstance(key, ast.Constant) and key.value == "cache_salt"
        for node in ast.walk(handler)
        if isinstance(node, ast.Dict)
        for key in node.keys
    )


def test_vllm_s_chat_processor_takes_the_one_beside_it(parsed: Parsed) -> None:
    """So both are sent."""
    tree = parsed("dynamo/frontend/vllm_processor.py")
    given = [
        keyword.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "cache_salt"
    ]
    assert any(isinstance(one, ast.Attribute) and one.attr == "cache_salt" for one in given)


def test_sglang_s_chat_processor_hands_none_on(parsed: Parsed) -> None:
    """If this fails it has learnt to, and `kind = "dynamo"` may be salted by default."""
    assert not [
        text for text in texts(parsed("dynamo/frontend/sglang_processor.py")) if "salt" in text
    ]
    assert KINDS["dynamo"].cache == ""
