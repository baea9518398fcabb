"""What is installed is what runs: the wheel holds its data files, and works on its own."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_the_wheel_holds_all_it_needs(tmp_path: Path) -> None:
    """Built from the source, unpacked elsewhere, it migrates a store and finds its config."""
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(tmp_path), str(REPO)], check=True)
    (wheel,) = tmp_path.glob("bulkhead-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
    assert {
        "config/bulkhead.toml",
        "config/models/smollm2-135m-instruct.toml",
        "engines/build/fetch.py",
    } <= set(names)
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]
    assert "Created tenant acme" in bulkhead(tmp_path, "tenants", "create", "acme")
    assert "Next: cd gate" in bulkhead(tmp_path, "init", "gate")
    assert "is good" in bulkhead(tmp_path, "check", "--strict", "--config", "gate/bulkhead.toml")


def bulkhead(folder: Path, *words: str) -> str:
    """What a command of the unpacked wheel says."""
    done = subprocess.run(
        [sys.executable, "-c", "from gateway.cli import main; main()", *words],
        cwd=folder,
        env={"PYTHONPATH": str(folder / "site"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
