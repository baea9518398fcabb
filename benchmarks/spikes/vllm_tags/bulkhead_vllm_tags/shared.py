"""The pool's tags in memory that the engine core writes and its workers read.

Over HTTP vLLM computes in another process than it schedules in, and what is checked must be the
pool's own tags, not a copy that came with the step.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from pathlib import Path

import numpy as np

from bulkhead_vllm_tags.ledger import Tags

FOLDER = "/dev/shm"  # memory; the file is this user's alone


def create(num_blocks: int) -> tuple[str, Tags]:
    """A file for so many tags, gone when this process ends; its path, and the array."""
    handle, path = tempfile.mkstemp(prefix="bulkhead-vllm-tags-", dir=FOLDER)
    os.truncate(handle, num_blocks * 8)
    os.close(handle)
    tags = np.memmap(path, np.uint64, "r+", shape=num_blocks)
    weakref.finalize(tags, Path(path).unlink, missing_ok=True)
    return path, tags.view(np.ndarray)


def attach(path: str) -> Tags:
    """The same array, to be read only."""
    return np.memmap(path, np.uint64, "r").view(np.ndarray)  # which is read faster
