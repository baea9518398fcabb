"""A checkout that is installed with `pip install -e`, as `make dev` does: its path, and no more."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
OURS = ["gateway", "runtime", "engines", "config"]
INSTALLED = "import site; site.addsitedir({site!r}); "
NO_KERNELS = "#include <nanobind/nanobind.h>\nNB_MODULE(_native, module) {}\n"  # soon built
WHERE = "import gateway; print(gateway.__file__)"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Installed into the folder `site`, next to it."""
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("no C++ compiler to build the native module with")
    folder = tmp_path_factory.mktemp("checkout") / "repo"
    for name in OURS:
        left_out = shutil.ignore_patterns("__pycache__", "_native*.so", "native")
        shutil.copytree(REPO / name, folder / name, ignore=left_out)
    (folder / "engines" / "native").mkdir()
    (folder / "engines" / "native" / "bind.cpp").write_text(NO_KERNELS)
    for name in ("pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE"):
        shutil.copy(REPO / name, folder)
    code = "import sys; from scikit_build_core.build import build_editable as to; to(sys.argv[1])"
    wheels = folder.parent / "wheels"
    subprocess.run([sys.executable, "-c", code, wheels], cwd=folder, check=True)
    (wheel,) = wheels.glob("*.whl")
    shutil.unpack_archive(wheel, folder.parent / "site", "zip")
    return folder


def run(checkout: Path, code: str, cwd: Path) -> str:
    """What Python says, started in `cwd`, where the checkout is installed."""
    setup = INSTALLED.format(site=str(checkout.parent / "site"))
    command = [sys.executable, "-S", "-c", setup + code]  # with nothing else that is installed
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_it_is_found_from_any_folder_and_so_is_a_module_added_later(checkout: Path) -> None:
    elsewhere = checkout.parent
    assert run(checkout, WHERE, elsewhere) == str(checkout / "gateway" / "__init__.py")
    (checkout / "gateway" / "added_later.py").write_text("NAME = 'here'\n")
    added = "from gateway.added_later import NAME; print(NAME)"
    assert run(checkout, added, elsewhere) == "here"


def test_another_checkout_s_code_is_its_own(checkout: Path, tmp_path: Path) -> None:
    """Its tests run in this environment too, and must not test this checkout."""
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway" / "__init__.py").touch()
    assert run(checkout, WHERE, tmp_path) == str(tmp_path / "gateway" / "__init__.py")


def test_its_native_module_lies_where_make_native_puts_it(checkout: Path) -> None:
    native = "from engines.kernels.native import module; print(module.__file__)"
    (built,) = (checkout / "engines").glob("_native*.so")
    assert run(checkout, native, checkout.parent) == str(built)
    assert not list((checkout.parent / "site").rglob("*.so"))
    kept = (REPO / "CMakeLists.txt").read_text()
    assert "LIBRARY_OUTPUT_DIRECTORY ${CMAKE_SOURCE_DIR}/engines" in kept
