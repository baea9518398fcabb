"""The limit of open files is raised as far as we are allowed to, and never lowered."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from runtime import open_files

INFINITE = resource.RLIM_INFINITY
TOLD = "import resource; print(*resource.getrlimit(resource.RLIMIT_NOFILE))"


def test_it_is_raised_and_children_inherit_it() -> None:
    """In a process of its own, whose limits nobody else needs."""
    script = (
        "import resource, subprocess, sys\n"
        "from runtime import open_files\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 512))\n"
        "open_files.raise_limit()\n"
        f"subprocess.run([sys.executable, '-c', {TOLD!r}], check=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["512", "512"]


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (1024, 4096, 4096),
        (1024, INFINITE, open_files.MOST),
        (1024, 10**6, open_files.MOST),
        (4096, 4096, None),
        (10**6, 10**6, None),
        (INFINITE, INFINITE, None),
    ],
)
def test_how_far(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int | None) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: set_to.append(limits))
    open_files.raise_limit()
    assert set_to == ([] if raised is None else [(raised, hard)])
