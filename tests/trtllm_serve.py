"""`python -m tests.trtllm_serve`: a process that behaves as `trtllm-serve MODEL` does, and fails.

Its command line and its YAML file are those of the real one. What a test switches and looks at goes
through environment variables and a unix socket, so that its port has the real one's routes alone.

    FAKE_TRTLLM_CONTROL   the socket; see `tests/trtllm/control.py`
    FAKE_TRTLLM_FAULTS    faults from the start, as JSON: {"hangs": {}}
    FAKE_TRTLLM_VERSION   the release that it says it is
    FAKE_TRTLLM_START_S   how long it takes to load
"""

from __future__ import annotations

import asyncio
import os
import sys

import msgspec
import uvicorn

from tests.trtllm.app import FakeServe
from tests.trtllm.control import controlled
from tests.trtllm.faults import Fault
from tests.trtllm.options import BadConfig, read_options


async def serve(arguments: list[str]) -> None:
    """Until it is told to stop. Raises BadConfig."""
    version = os.environ.get("FAKE_TRTLLM_VERSION", "1.2.1")
    fake = FakeServe(read_options(arguments, version), version)
    faults = os.environ.get("FAKE_TRTLLM_FAULTS", "{}")
    fake.faults.set(msgspec.json.decode(faults, type=dict[str, Fault]))
    await asyncio.sleep(float(os.environ.get("FAKE_TRTLLM_START_S", "0")))
    config = uvicorn.Config(
        fake, fake.options.host, fake.options.port, log_level="warning", timeout_keep_alive=5,
        lifespan="off", timeout_graceful_shutdown=5,
    )  # fmt: skip
    async with controlled(fake, os.environ.get("FAKE_TRTLLM_CONTROL", "")):
        await uvicorn.Server(config).serve()


if __name__ == "__main__":
    try:
        asyncio.run(serve([one for one in sys.argv[1:] if one != "serve"]))
    except BadConfig as fault:
        sys.exit(str(fault))
    except KeyboardInterrupt:
        sys.exit(130)
