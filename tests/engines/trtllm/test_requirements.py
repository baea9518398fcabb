"""TensorRT-LLM's own environment has the release that is rendered for."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from engines.trtllm import versions
from engines.trtllm.closure import GUARD, ROOT, closure
from engines.trtllm.settings import TrtSettings

REQUIREMENTS = Path(ROOT) / "engines" / "trtllm" / "requirements.txt"
# What TensorRT-LLM brings along, beside Python's own modules.
THERE = {"numpy", "tensorrt_llm", "torch", "triton"}


def test_it_is_the_release_that_is_the_default_and_not_below_the_floor() -> None:
    pins = re.findall(r"^tensorrt-llm==(.+)$", REQUIREMENTS.read_text(), re.MULTILINE)
    assert pins == [TrtSettings().version]
    assert versions.parsed(pins[0]) >= versions.FLOOR


def test_the_guard_needs_nothing_that_isn_t_there() -> None:
    for path, source in closure(GUARD).items():
        for node in ast.walk(ast.parse(source)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in {name.partition(".")[0] for name in names} - {"engines"}:
                assert name in THERE or name in sys.stdlib_module_names, f"{path} imports {name}"


def test_the_guard_is_read_by_the_oldest_python_that_tensorrt_llm_has() -> None:
    for source in closure(GUARD).values():
        ast.parse(source, feature_version=(3, 10))
