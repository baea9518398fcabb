"""The processes of a gateway: granian's workers in front, the node in a thread beside them.

The parent owns the state folder, the store, the listening socket and the node; workers are spawned
and find their settings in the environment. A killed worker is started again; a killed parent takes
all with it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import structlog

from gateway.deployed import Deployed
from gateway.processes.granian import Server
from gateway.processes.renewal import Offer, Renewal
from gateway.processes.tls_files import TlsFolder
from runtime import logs, state
from runtime.deploy import reload
from runtime.deploy.reload import Start
from runtime.deploy.running import Sign
from runtime.node.node import Node
from runtime.rundir import runtime_dir
from runtime.settings import Settings, export_to_children
from runtime.tls import certificates
from runtime.tls.listener import listen

log = structlog.get_logger()

STORE_WAIT_S = 10.0  # for a gateway that was just killed to let go


def node_of(start: Start) -> Node:
    """The node that begins with this deployment."""
    return Node(start.settings, start.number)


async def keep_hosts(node: Node, start: Start, stop: asyncio.Event) -> None:
    """Run a node until `stop`. It follows the deployments that come after `start`."""

    async def apply(settings: Settings, number: int) -> None:
        node.apply(settings, number)
        logs.set_level(settings.file.observability.level)

    logs.set_level(start.settings.file.observability.level)
    sign = Sign(start.settings.state_dir, "node", dev=start.settings.dev)
    async with reload.following(start, sign, apply):
        await node.run(stop)


class NodeThread:
    """The node, in a thread with a loop of its own, until `stop`. If it breaks, all ends."""

    def __init__(self, start: Start) -> None:
        self._node = node_of(start)  # here, so that its faults are the caller's
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


def run_gateway(start: Start, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until a signal, then drain. Once it serves, `ready` runs in a thread beside.

    Who calls holds the store (`own_store`). Raises GatewayFailed, PortInUse or BadCertificate.
    """
    settings, deployed = start.settings, Deployed(start.settings, start.number)
    tls = settings.file.server.tls
    renewal = Renewal(lambda: deployed().file.server.tls, settings.folder) if tls.cert else None
    offer = Offer(tls, certificates.load(tls, settings.folder)) if tls.cert else None
    export_to_children(settings)
    multiprocessing.set_start_method("spawn")  # the node's thread runs: a fork would copy its locks
    folder = TlsFolder(runtime_dir(settings.state_dir))
    listen(listener)
    server = Server(deployed, listener, folder, offer, renewal)
    server.on_serving = threading.Thread(target=ready, name="ready", daemon=True).start
    try:
        server.serve()
    finally:
        folder.keep(None)


def own_store(state_dir: Path) -> IO[str]:
    """Be the one gateway of this SQLite store. Raises StateInUse."""
    deadline = time.monotonic() + STORE_WAIT_S
    while True:
        try:
            return state.own(state_dir, "gateway")
        except state.StateInUse:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
