"""How much memory this machine has for hosts, and how much a process takes."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

# Not for hosts: the system, the gateway and its store, and the page cache of the weights.
RESERVED_SHARE = 0.1
RESERVED_BYTES = 512 * 1024 * 1024
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def memory_for_hosts() -> int:
    """Bytes that all hosts together may take: the machine's memory, or its cgroup's, less some."""
    total = PAGE_BYTES * os.sysconf("SC_PHYS_PAGES")
    total = min([total, *_cgroup_limits()])
    return total - max(RESERVED_BYTES, int(total * RESERVED_SHARE))


def _cgroup_limits() -> list[int]:
    found = []
    for path in CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # not there, or "max"
            found.append(int(Path(path).read_text()))
    return found


def resident_bytes(pid: int) -> int:
    """What a process holds in memory now; 0 where that can't be told."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0
