"""Files that a configuration names, read only if they are some.

A pipe would be waited for, for ever, and a device may have no end.
"""

from __future__ import annotations

import errno
import stat
from pathlib import Path


def read(path: Path) -> bytes:
    """All of a regular file. Raises OSError, of anything else too."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # of a folder the system says so
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return path.read_bytes()
