"""Bookkeeping, tokenizer and converter start without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

TORCHLESS = [
    "engines.embedded.seq",
    "engines.embedded.tags",
    "engines.embedded.pages",
    "engines.embedded.prefix",
    "engines.embedded.tables",
    "engines.embedded.scheduler",
    "engines.embedded.batch",
    "engines.embedded.verify",
    "engines.embedded.domains",
    "engines.embedded.scrub",
    "engines.embedded.config",
    "engines.embedded.checkpoint",
    "engines.embedded.settled",
    "engines.embedded.facts",
    "engines.embedded.engine",
    "engines.embedded.faults",
    "engines.embedded.rope",
    "engines.embedded.evaluation.evaluate",
    "engines.tokenizer",
    "engines.build.gguf",
    "engines.build.fetch",
]


@pytest.mark.parametrize("module", TORCHLESS)
def test_importing_it_loads_no_torch(module: str) -> None:
    """A fresh interpreter that imports the module has no torch."""
    check = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
