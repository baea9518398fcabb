"""How many cores this process may use: what the affinity mask and the control group leave it.

A thread more than that doesn't help; it waits for a turn, and the others wait for it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """At least 1. A quota of less than a whole core counts as one."""
    affinity = getattr(os, "sched_getaffinity", None)
    allowed = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, min([allowed, *map(math.ceil, quotas(OWN_CGROUP, CGROUPS))]))


def num_threads(asked: int) -> int:
    """As many as asked for, but no more than there are cores for; 0 asks for that many."""
    return min(asked or usable_cores(), usable_cores())


def quotas(own: Path, root: Path) -> Iterator[float]:
    """Cores that a control group's quota is worth: this process's groups and those above them.

    `own` is a file like /proc/self/cgroup, `root` where control groups are mounted.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _above(root, path, "cpu.max")
        elif "cpu" in controllers.split(","):
            for folder in (root / controllers, root / "cpu"):
                yield from _above(folder, path, "cpu.cfs_quota_us")


def _above(mount: Path, path: str, name: str) -> Iterator[float]:
    """In a container the path may be the host's: what isn't there has no quota."""
    folder = mount / path.strip("/")
    for group in (folder, *folder.parents):
        if not group.is_relative_to(mount):
            return
        try:
            words = (group / name).read_text().split()
            if name != "cpu.max":  # version 1 has the period in a file of its own
                words.append((group / "cpu.cfs_period_us").read_text())
            if words[0] not in ("max", "-1"):
                yield int(words[0]) / int(words[1])
        except (OSError, ValueError, IndexError):
            continue
