"""A file of weights as bytes that all hosts of a model share: the system's own copy, mapped.

Nothing is read before it is used, and in huge pages where the file system has them: as fast to read
as memory that one host alone would hold (decision 20).
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def mapped(path: Path) -> NDArray[np.uint8]:
    """All bytes of a file, read-only, on a page's boundary. Raises OSError, ValueError if empty.

    The file must stay as it is while anyone holds them: put a new one in its place, don't write it.
    """
    with open(path, "rb") as file:
        content = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    with suppress(AttributeError, OSError):  # a system without huge pages
        content.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(content, np.uint8)
