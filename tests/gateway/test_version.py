"""Which version this is, also of code that was only copied."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest

from gateway import version
from tests.stack import REPO

# As `python -m gateway` where the code lies, and nothing says that it was installed.
COPIED = (
    "import runpy, sys; from gateway import version; version.PACKAGE = 'not-installed'\n"
    "sys.argv[:] = ['bulkhead', '--version']; runpy.run_module('gateway', run_name='__main__')"
)


def test_it_is_the_installed_one() -> None:
    assert version.version() == metadata.version("bulkhead")


def test_copied_code_says_that_it_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "PACKAGE", "not-installed")
    assert version.version() == "unknown"


def test_and_its_commands_work() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COPIED], capture_output=True, text=True, cwd=REPO, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "unknown" in done.stdout
