"""Where the guard inside TensorRT-LLM leaves what it has to say: the folder that its launcher made.

The one module of ours, beside the settings, that reads the environment: it runs in TensorRT-LLM's
processes, which have nothing of ours but the guard. The second name is for ranks that MPI starts on
other machines: TensorRT-LLM hands them only the variables that begin with its own name.
"""

from __future__ import annotations

import os
from pathlib import Path

VARIABLES = ("BULKHEAD_GUARD_DIR", "TRTLLM_BULKHEAD_GUARD_DIR")


class NoFolder(Exception):
    """The server wasn't started by the launcher, or not as it says."""


def guard_folder() -> Path:
    """Raises NoFolder."""
    for variable in VARIABLES:
        if value := os.environ.get(variable):
            if (folder := Path(value)).is_dir():
                return folder
            raise NoFolder(f"{variable} names no folder of this machine: {value}")
    raise NoFolder(f"neither {' nor '.join(VARIABLES)} is set: nobody would hear the guard")
