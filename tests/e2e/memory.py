"""What a process of a stack holds."""

from __future__ import annotations

import os
import re
from pathlib import Path


def rss_mb(pid: int) -> float:
    """Its resident memory."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def descriptors(pid: int) -> int:
    """How many it has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))
