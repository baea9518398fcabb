"""The pool's tags in memory that the engine core writes and its workers read.

Over HTTP vLLM computes in another process than it schedules in, and what is checked must be the
pool's own tags, not a copy that came with the step.
"""

from __future__ import annotations

import os
import weakref

import numpy as np

from bulkhead_vllm_tags.ledger import Tags


def create(num_blocks: int) -> tuple[str, Tags]:
    """Memory for so many tags; a path to it, and the array. It goes with this process."""
    handle = os.memfd_create("bulkhead-vllm-tags")
    os.truncate(handle, num_blocks * 8)
    path = f"/proc/{os.getpid()}/fd/{handle}"  # for processes of the same user
    tags = np.memmap(path, np.uint64, "r+", shape=num_blocks)
    weakref.finalize(tags, os.close, handle)
    return path, tags.view(np.ndarray)


def attach(path: str) -> Tags:
    """The same array, to be read only."""
    return np.memmap(path, np.uint64, "r").view(np.ndarray)  # which is read faster
