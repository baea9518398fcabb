"""No more threads than the affinity mask and the control group's quota leave cores for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engines.embedded import cores


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def own(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "own"
    path.write_text(text)
    return path


def test_a_quota_of_version_2_and_of_the_groups_above(tmp_path: Path) -> None:
    group(tmp_path / "root" / "a" / "b", cpu__max="150000 100000\n")
    group(tmp_path / "root" / "a", cpu__max="max 100000\n")
    group(tmp_path / "root", cpu__max="400000 100000\n")
    found = cores.quotas(own(tmp_path, "0::/a/b\n"), tmp_path / "root")
    assert list(found) == [1.5, 4]


def test_a_quota_of_version_1(tmp_path: Path) -> None:
    root = tmp_path / "root"
    group(root / "cpu,cpuacct" / "x", cpu__cfs_quota_us="50000", cpu__cfs_period_us="100000")
    group(root / "cpu,cpuacct", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    lines = own(tmp_path, "5:memory:/x\n4:cpu,cpuacct:/x\n0::/\n")
    assert list(cores.quotas(lines, root)) == [0.5]


def test_nothing_to_read_is_no_quota(tmp_path: Path) -> None:
    assert list(cores.quotas(tmp_path / "missing", tmp_path)) == []
    group(tmp_path / "root", cpu__max="rubbish")
    assert list(cores.quotas(own(tmp_path, "0::/gone\n"), tmp_path / "root")) == []


def test_threads_are_cut_to_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "usable_cores", lambda: 3)
    assert [cores.num_threads(asked) for asked in (0, 1, 3, 8)] == [3, 1, 3, 3]


def test_a_quota_of_half_a_core_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group(tmp_path / "root", cpu__max="50000 100000")
    monkeypatch.setattr(cores, "OWN_CGROUP", own(tmp_path, "0::/\n"))
    monkeypatch.setattr(cores, "CGROUPS", tmp_path / "root")
    assert cores.usable_cores() == 1


def test_the_affinity_of_a_real_process_counts() -> None:
    """Bound to one core, whatever the machine has."""
    core = min(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, {{{core}}}); "
        "from engines.embedded.cores import usable_cores; print(usable_cores())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
