"""What is copied for the guard is what it imports, and no more."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from engines.trtllm.closure import ROOT, NoModule, closure

FILES = {
    "engines/__init__.py": '"""Packages."""',
    "engines/trtllm/__init__.py": "",
    "engines/trtllm/guard.py": (
        "import json, engines.trtllm.first\n"
        "from engines.trtllm import second as other, NAME\n"
        "def late():\n    from engines.parts.inner import deep\n"
    ),
    "engines/trtllm/first.py": "import enginesque\nfrom engines.trtllm.guard import late\n",
    "engines/trtllm/second.py": "try:\n    import engines.trtllm.third\nexcept ImportError: ...\n",
    "engines/trtllm/third.py": "import torch\n",
    "engines/trtllm/foreign.py": "import starlette\n",
    "engines/parts/__init__.py": "",
    "engines/parts/inner/__init__.py": "from engines.parts.inner.deep import x\n",
    "engines/parts/inner/deep.py": "x = 1\n",
}
WANTED = set(FILES) - {"engines/trtllm/foreign.py"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, source in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return tmp_path


def test_every_way_of_importing_is_followed(root: Path) -> None:
    found = closure(["engines.trtllm.guard"], root)
    assert set(found) == WANTED
    assert list(found) == sorted(found)
    assert found == {name: FILES[name] for name in found}


def test_a_module_that_isn_t_there_is_told_with_who_wants_it(root: Path) -> None:
    (root / "engines/trtllm/third.py").unlink()
    with pytest.raises(NoModule, match=r"engines\.trtllm\.third, imported by engines\.trtllm\.sec"):
        closure(["engines.trtllm.guard"], root)


def test_what_the_guard_leaves_to_read_loads_alone(tmp_path: Path) -> None:
    """In a Python that has none of our packages: only what was copied is on its path."""
    found = closure(["engines.trtllm.journal", "engines.trtllm.salts"])
    for name, source in found.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
    code += "import engines.trtllm.journal as one; print(one.__file__)"
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(str(tmp_path))


def test_the_packages_on_the_way_import_nothing() -> None:
    """They are copied too, and would draw in whatever they import."""
    for name in ("engines/__init__.py", "engines/trtllm/__init__.py"):
        tree = ast.parse((ROOT / name).read_text())
        assert not [n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom))]
