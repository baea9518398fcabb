"""A launcher as a process: its sockets, its signals, and its end."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from runtime.host.process import listen
from runtime.trt.bind import Bind
from runtime.trt.launcher import Launcher
from runtime.trt.telling import Listeners, Telling, open_door


async def keep(launcher: Launcher, local: Path, events: Bind | None, secret: str) -> None:
    """Run it until a signal: the first lets answers end, a second doesn't. Raises PortInUse."""
    telling = Telling(launcher.view, launcher.feed)
    doors = [(open_door(events), telling.app(secret))] if events else []
    listeners = Listeners([(listen(local), telling.app()), *doors])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, launcher.stop.say)
    serving = asyncio.ensure_future(listeners.serve())
    try:
        await launcher.run()
    finally:
        listeners.stop()
        await serving
        local.unlink(missing_ok=True)  # noqa: ASYNC240 - in memory
