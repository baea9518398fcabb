"""Weights are the file's own pages: read-only, shared, and huge where the system has such."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from engines.embedded.mapped import mapped

SIZE = 4 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * (SIZE // 256))
    return path


def told_of(path: Path) -> str:
    """What the system says of the file's mapping in this process."""
    maps = Path("/proc/self/smaps").read_text()
    entry = re.search(rf"^\S+ \S+ \S+ \S+ \d+ +{re.escape(str(path))}\n(?:\w+:.*\n)+", maps, re.M)
    assert entry, "it isn't mapped"
    return entry[0]


def test_it_is_the_file_and_can_t_be_written(path: Path) -> None:
    content = mapped(path)
    assert content.tobytes() == path.read_bytes()
    with pytest.raises(ValueError, match="read-only"):
        content[0] = 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_it_takes_no_memory_of_its_own_and_asks_for_huge_pages(path: Path) -> None:
    content = mapped(path)
    assert re.search(r"^Rss: +0 kB", told_of(path), re.M), "nothing is read beforehand"
    assert int(content.sum(dtype=np.int64)) > 0
    told = told_of(path)
    assert re.search(r"^Anonymous: +0 kB", told, re.M)
    assert re.search(r"^VmFlags:.* hg\b", told, re.M)


def test_a_view_keeps_it_when_its_name_is_gone(path: Path) -> None:
    part = mapped(path)[256:512]
    path.unlink()
    assert part.tobytes() == bytes(range(256))


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights").touch()
    with pytest.raises(ValueError, match="empty"):
        mapped(tmp_path / "weights")
