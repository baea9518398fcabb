"""What stands in the way of `make dev` is told in one sentence."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stack import free_port

REPO = Path(__file__).resolve().parent.parent
NO_INDEX = {
    "PIP_CONFIG_FILE": "/dev/null",
    "PIP_FIND_LINKS": "",
    "PIP_INDEX_URL": "http://127.0.0.1:9/simple",  # the discard port: nobody listens
    "PIP_RETRIES": "0",
}
OLD = """
import runpy, shutil, sys
sys.version_info = (3, 9, 1)
shutil.which = lambda name: None
sys.argv = ["bootstrap.py", "dev"]
runpy.run_path("bootstrap.py", run_name="__main__")
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("bootstrap.py", "pyproject.toml", "CMakeLists.txt"):
        shutil.copy(REPO / name, tmp_path)
    return tmp_path


def run(folder: Path, *command: str, **env: str) -> str:
    """What it said; it must have failed."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=dict(os.environ) | env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    return done.stderr


def test_a_python_that_is_too_old(checkout: Path) -> None:
    told = run(checkout, "-c", OLD)
    assert told == "Bulkhead needs Python 3.11 or newer, and this is 3.9.1: install a newer one.\n"


@pytest.mark.slow
def test_no_network_for_the_packages(checkout: Path) -> None:
    told = run(checkout, "bootstrap.py", "dev", **NO_INDEX).splitlines()
    assert "no package index answers" in told[-1]
    assert len(told) == 3, "what it was doing, and the sentence"


@pytest.mark.slow
def test_no_network_for_the_weights(tmp_path: Path) -> None:
    env = NO_INDEX | {"BULKHEAD_PORT": str(free_port()), "BULKHEAD_ADMIN_PORT": "0"}
    told = run(REPO, "-m", "gateway", "dev", "--state", str(tmp_path / "state"), **env)
    assert "no network" in told.splitlines()[-1]
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "  Downloading https://x/y/a_b-2.9-py3-none-any.whl (18 MB)",
            "downloading a_b 2.9 (18 MB)",
        ),
        ("  Downloading torch-2.9.0.whl.metadata (30 kB)", ""),
        ("Installing collected packages: a, b, c", "unpacking 3 packages, which takes the longest"),
        ("  Installing collected packages: ninja, cmake", ""),
        (
            "  *** Building project with Ninja...",
            "compiling the native kernels, which takes a minute or two",
        ),
        ("Requirement already satisfied: a", ""),
    ],
)
def test_the_steps_of_an_installation_are_told(line: str, told: str) -> None:
    assert runpy.run_path(str(REPO / "bootstrap.py"))["step"](line + "\n") == told


def test_a_changed_kernel_or_another_compiler_is_installed_again_and_nothing_else_is(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def digest() -> str:
        found: str = runpy.run_path(str(checkout / "bootstrap.py"))["digest"]()
        return found

    (checkout / "engines" / "native").mkdir(parents=True)
    (checkout / "engines" / "api.py").write_text("")
    kernel = checkout / "engines" / "native" / "pool.cpp"
    kernel.write_text("int a;")
    seen = [digest()]
    assert digest() == seen[0]
    (checkout / "engines" / "api.py").write_text("# changed")
    assert digest() == seen[0], "Python isn't copied"
    for change in (
        lambda: kernel.write_text("int b;"),
        lambda: kernel.rename(kernel.with_name("crew.cpp")),
        lambda: (checkout / "CMakeLists.txt").write_text("# changed"),
        lambda: monkeypatch.setenv("CXX", "no-such-compiler"),
    ):
        change()
        assert digest() not in seen
        seen.append(digest())


@pytest.mark.parametrize("is_built", [True, False], ids=["built", "not built"])
def test_torch_is_installed_where_the_native_kernels_aren_t(
    checkout: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_built: bool,
) -> None:
    """And in the tests' environment. It is said once, with what is missing and what it costs."""
    bootstrap = runpy.run_path(str(checkout / "bootstrap.py"))
    installed: list[str] = []
    (checkout / ".venv").mkdir()
    monkeypatch.setenv("CXX", "no-such-compiler")
    for name, fake in {
        "make_venv": lambda python: None,
        "install": installed.append,
        "is_native_built": lambda: is_built,
    }.items():
        monkeypatch.setitem(bootstrap["main"].__globals__, name, fake)
    bootstrap["main"]("dev")
    assert installed == [""] if is_built else ["", "torch"]
    told = capsys.readouterr().err
    assert told.count("several times slower") == (not is_built)
    assert told.count("install g++") == (not is_built)
    installed.clear()
    bootstrap["main"]("test")
    assert installed == ["torch,test"]


def test_why_there_is_no_native_module_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    why = runpy.run_path(str(REPO / "bootstrap.py"))["why_not_built"]
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "install g++" in why()
    monkeypatch.setenv("CXX", "false")
    assert "install.log" in why()


def test_a_build_that_failed_is_told_with_how_to_have_it_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same compiler alone is no reason to install anew."""
    monkeypatch.setenv("CXX", "false")
    told = runpy.run_path(str(REPO / "bootstrap.py"))["why_not_built"]()
    assert ".venv/install.log" in told
    assert "make clean" in told
