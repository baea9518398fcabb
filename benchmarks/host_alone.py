"""A host without a gateway, on an engine that computes nothing: for what a token costs there.

Its tokens are those of the packaged model, so that turning them into text costs what it does.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import cast

import uvicorn

from engines.api import Engine, Request
from engines.fake import FakeEngine, Running
from engines.tokenizer import FolderTokenizer
from runtime.capability import Signer, Verifier
from runtime.host.app import Host
from runtime.host.engine_thread import EngineThread
from runtime.host.process import HostServer, listen

MODEL = "nothing"
SEED = bytes(32)  # of the key for capabilities: whoever measures has it, too


class Echo(FakeEngine):
    """Any model's tokens, not only bytes."""

    def add(self, request: Request) -> None:
        """See engines.api.Engine."""
        self._requests[request.id] = Running(request)


async def serve(socket: Path, folder: Path, step_s: float) -> None:
    """Until the process is ended."""
    engine = Echo(step_s=step_s, max_running=1024)
    engine.tokenizer = FolderTokenizer(folder)  # type: ignore[assignment]
    thread = EngineThread(lambda: cast("Engine", engine))
    await thread.start()
    verifier = Verifier(Signer(SEED).public_keys(), MODEL)
    host = Host(MODEL, cast("Engine", engine), thread, verifier, 16)
    config = uvicorn.Config(
        host.asgi(), http="httptools", lifespan="off", log_config=None, access_log=False
    )
    sockets = [listen(socket)]
    print("ready", flush=True)
    await HostServer(config).serve(sockets=sockets)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])))
