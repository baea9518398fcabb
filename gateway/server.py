"""The processes of a gateway: granian's workers in front, the node in a thread beside them.

The parent owns the state folder and the node; workers are spawned by granian and find their
settings in the environment. A killed worker is started again; a killed parent takes all with it.
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import socket
import threading
import time
from collections.abc import Callable

import structlog
from granian.constants import Interfaces
from granian.log import LogLevels
from granian.server import MPServer

from runtime.node import Node
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


def check_port(host: str, port: int) -> None:
    """Raises PortInUse, with what to do, if `port` can't be bound."""
    deadline = time.monotonic() + PORT_WAIT_S
    while True:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            with socket.socket(family, socket.SOCK_STREAM) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((host, port))
                return
        except OSError as fault:
            if time.monotonic() > deadline:
                raise PortInUse(
                    f"{host}:{port} can't be listened on ({fault.strerror}); "
                    "stop what uses it, or choose another with --port"
                ) from None
            time.sleep(0.2)


class NodeThread:
    """The node, in a thread with a loop of its own, until `stop`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._thread = threading.Thread(target=self._run, name="node", daemon=True)
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._told: asyncio.Event

    def start(self) -> None:
        """Returns once the node runs; its hosts may still be starting."""
        self._thread.start()
        self._started.wait()

    def stop(self) -> None:
        """Drain the hosts; returns when they are gone."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._told.set)
            self._thread.join()

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._told = asyncio.Event()
        node = Node(self._settings)
        self._started.set()
        await node.run(self._told)


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
        try:
            _granian(settings).serve()
        except SystemExit as ended:  # its workers crashed; a signal ends it without
            failures = failures_after(failures, time.monotonic() - began)
            log.error("gateway_workers_crashed", code=ended.code, failures=failures)
            time.sleep(backoff_s(failures, BACKOFF_FIRST_S, BACKOFF_MAX_S))
        else:
            return
    raise GatewayFailed("the gateway's workers crash as soon as they start; see the log above")


def _granian(settings: Settings) -> MPServer:
    server = settings.file.server
    return MPServer(
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
    )
