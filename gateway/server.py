"""The processes of a gateway: granian's workers in front, the node in a thread beside them.

The parent owns the state folder and the node; workers are spawned by granian and find their
settings in the environment. A killed worker is started again; a killed parent takes all with it.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import math
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import structlog
from granian.constants import Interfaces
from granian.log import LogLevels
from granian.server import MPServer

from gateway.parent import mark
from runtime import reload
from runtime.node import Node
from runtime.reload import Start
from runtime.running import Sign
from runtime.scaling import backoff_s, failures_after
from runtime.settings import Settings, export_to_children

log = structlog.get_logger()

PORT_WAIT_S = 2.0  # a worker whose parent was killed takes a moment to go
MAX_FAILURES = 8
BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 10.0


class GatewayFailed(Exception):
    """The workers can't be kept running."""


class PortInUse(Exception):
    """Somebody listens there already."""


def own_port(host: str, port: int) -> IO[str]:
    """Take a port until the returned file is closed. Raises PortInUse, with what to do.

    granian shares its port with whoever asks (SO_REUSEPORT), so that binding alone doesn't tell
    two of us apart: a lock does.
    """
    deadline = time.monotonic() + PORT_WAIT_S
    lock = (Path(tempfile.gettempdir()) / f"bulkhead-{os.getuid()}-port-{port}.lock").open("a")
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            with socket.socket(family, socket.SOCK_STREAM) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((host, port))
                return lock
        except OSError as fault:
            if time.monotonic() > deadline:
                lock.close()
                raise PortInUse(
                    f"{host}:{port} can't be listened on ({_reason(fault)}); "
                    "stop what uses it, or choose another with --port"
                ) from None
            time.sleep(0.2)


def _reason(fault: OSError) -> str:
    return "Address already in use" if fault.errno == errno.EAGAIN else str(fault.strerror)


async def keep_hosts(node: Node, start: Start, stop: asyncio.Event) -> None:
    """Run a node until `stop`. It follows the deployments that come after `start`."""

    async def apply(settings: Settings, number: int) -> None:
        node.apply(settings, number)

    sign = Sign(start.settings.state_dir, "node", dev=start.settings.dev)
    async with reload.following(start, sign, apply):
        await node.run(stop)


class NodeThread:
    """The node, in a thread with a loop of its own, until `stop`. If it breaks, all ends."""

    def __init__(self, start: Start) -> None:
        self._node = Node(start.settings)  # here, so that its faults are the caller's
        self._start = start
        self._thread = threading.Thread(target=self._run, name="node", daemon=True)
        self._loop = asyncio.new_event_loop()
        self._told = asyncio.Event()
        self.is_broken = False

    def start(self) -> None:
        """Its hosts may still be starting when this returns."""
        self._thread.start()

    def stop(self) -> None:
        """Drain the hosts; returns when they are gone."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._told.set)
            self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(keep_hosts(self._node, self._start, self._told))
        except Exception:
            log.exception("node_failed")
            self.is_broken = True
            os.kill(os.getpid(), signal.SIGTERM)


def run_gateway(settings: Settings, ready: Callable[[], None]) -> None:
    """Serve until a signal, then drain. `ready` runs in a thread beside.

    granian replaces one crashed worker, and ends when the next crashes within seconds; we begin
    again, more and more slowly. Raises GatewayFailed when that doesn't help.
    """
    export_to_children(settings)
    multiprocessing.set_start_method("spawn")  # the node's thread runs: a fork would copy its locks
    threading.Thread(target=ready, daemon=True).start()
    failures = 0
    while failures < MAX_FAILURES:
        began = time.monotonic()
        granian = _granian(settings)
        try:
            granian.serve()
        except SystemExit as ended:  # its workers crashed; a signal ends it without
            failures = failures_after(failures, time.monotonic() - began)
            log.error("gateway_workers_crashed", code=ended.code, failures=failures)
            time.sleep(backoff_s(failures, BACKOFF_FIRST_S, BACKOFF_MAX_S))
        else:
            return
        finally:
            granian.stopping_mark.unlink(missing_ok=True)
    raise GatewayFailed("the gateway's workers crash as soon as they start; see the log above")


class Server(MPServer):
    """granian's, which tells its workers when it is being stopped, and takes a second no."""

    stopping_mark: Path

    def signal_handler_interrupt(self, *args: Any, **kwargs: Any) -> None:
        """SIGTERM or SIGINT: drain. The second time: end now, and with us all that we started."""
        if self.interrupt_signal:
            os._exit(1)
        log.info("stopping", grace="running answers may end; the next signal ends them")
        self.stopping_mark.touch()
        super().signal_handler_interrupt(*args, **kwargs)  # type: ignore[no-untyped-call] # granian's

    def signal_handler_reload(self, *args: Any, **kwargs: Any) -> None:
        """SIGHUP: the terminal was closed, which is a stop like any other."""
        self.signal_handler_interrupt(*args, **kwargs)


def _granian(settings: Settings) -> Server:
    server = settings.file.server
    granian = Server(
        "gateway.app:from_environment",
        factory=True,
        address=server.host,
        port=server.port,
        interface=Interfaces.ASGI,
        workers=1,
        websockets=False,
        respawn_failed_workers=True,
        workers_kill_timeout=math.ceil(server.drain_s),
        log_level=LogLevels.error,
        log_dictconfig={"handlers": {}, "loggers": {"_granian": {"propagate": True}}},
    )
    granian.stopping_mark = mark(settings.state_dir, os.getpid())
    return granian
