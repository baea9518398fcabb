"""Each kind of violation is in the docs, in their words."""

from __future__ import annotations

import re
from pathlib import Path

from engines.trtllm.violations import KINDS
from engines.trtllm.watch import ON_DEVICE

DOCS = Path(__file__).parents[3] / "docs" / "tensorrt-llm.md"


def test_the_docs_have_each_kind() -> None:
    [section] = re.findall(r"### What it catches\n(.*?)\n###", DOCS.read_text(), re.DOTALL)
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    assert {*KINDS, ON_DEVICE} <= set(re.findall(r"`(\w+)`", " ".join(rows)))
