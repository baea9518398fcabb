"""granian's workers, started and ended as `workers` decides, on the one socket of `listener`.

Of granian's own supervision only its signals, its arguments and its farewell are left: it binds a
socket for each worker, and waits for an old one to end before it looks at anything else.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import structlog
from granian._granian import SocketHolder
from granian.constants import Interfaces, SSLProtocols
from granian.http import HTTP1Settings, HTTP2Settings
from granian.log import LogLevels
from granian.server import MPServer
from granian.server.mp import WorkerProcess

from gateway.deployed import Deployed
from gateway.processes.loading import APP, load_app
from gateway.processes.parent import Word
from gateway.processes.renewal import Offer, Renewal
from gateway.processes.tls_files import TlsFiles, TlsFolder
from gateway.processes.workers import Workers
from runtime import state
from runtime.open_files import possible
from runtime.tls.listener import BACKLOG

log = structlog.get_logger()

# Of one connection: the most that its head may be, and that waits for a client that doesn't read.
HTTP1_BUFFER_BYTES = 64 * 1024
FILES_A_STREAM = 2  # to its client, and to its engine
TURN_S = 0.1
GRACE_S = 30.0  # for a retired worker, after the last answer it may have
# By default, headers may have 16 MiB, and a peer that vanished is never missed.
HTTP2 = HTTP2Settings(max_headers_size=64 * 1024, keep_alive_interval=30_000, keep_alive_timeout=60)
PROTOCOLS = {"1.2": SSLProtocols.tls12, "1.3": SSLProtocols.tls13}


class ServerProcess:
    """A worker of granian's, and the pipe to it."""

    def __init__(self, process: WorkerProcess, pipe: Connection) -> None:
        self._process = process
        self._pipe = pipe  # whose end would end the worker
        self._serves = False
        process.inner.start()  # not granian's `start`, whose watcher would respawn it

    def is_alive(self) -> bool:
        return bool(self._process.inner.is_alive())

    def is_serving(self) -> bool:
        if not self._serves and self._pipe.poll():
            try:
                self._serves = Word(self._pipe.recv_bytes()) is Word.SERVING
            except (EOFError, OSError):
                return False
        return self._serves

    def ending(self) -> str:
        code = self._process.inner.exitcode
        return f"killed by signal {-code}" if code and code < 0 else f"exited with {code}"

    def retire(self) -> None:
        self.say(Word.RETIRE)

    def kill(self) -> None:
        self._process.inner.kill()

    def say(self, word: Word) -> None:
        """Tell it, if it's there to hear."""
        try:
            self._pipe.send_bytes(word.value)
        except OSError:
            log.debug("worker_gone", word=word.name)

    @property
    def inner(self) -> WorkerProcess:
        """granian's."""
        return self._process


class Serving:
    """Workers with one pair of certificates, or with none: plain HTTP."""

    def __init__(self, server: Server, files: TlsFiles | None, offer: Offer | None) -> None:
        self._server = server
        self._files = files
        self._offer = offer

    def start(self) -> ServerProcess:
        protocol = PROTOCOLS[self._offer.tls.min_version] if self._offer else SSLProtocols.tls13
        return self._server.spawn(self._files, protocol)

    def taken(self) -> None:
        self._server.taken(self._files)
        if self._offer and (leaf := self._offer.identity.leaf):
            log.info(
                "certificate_in_use",
                names=leaf.names,
                serial=leaf.serial,
                expires=f"{leaf.not_after:%Y-%m-%dT%H:%M:%SZ}",
            )

    def refused(self, reason: str) -> None:
        self._server.refused(reason)


class Server(MPServer):
    """granian's, with workers that take over from each other. A second signal ends it at once.

    `deployed` is asked for the settings as they are by then. `offer` is what it begins with, and
    `renewal` watches what becomes of that; None: plain HTTP.
    """

    def __init__(
        self,
        deployed: Deployed,
        listener: socket.socket,
        folder: TlsFolder,
        offer: Offer | None = None,
        renewal: Renewal | None = None,
    ) -> None:
        file = deployed().file
        server = file.server
        super().__init__(
            APP,
            address=server.host,
            port=server.port,
            interface=Interfaces.ASGI,
            workers=1,
            # Connections, idle ones included; `limits.max_requests` bounds what is asked on them.
            backpressure=possible() // FILES_A_STREAM,
            websockets=False,
            http1_settings=HTTP1Settings(max_buffer_size=HTTP1_BUFFER_BYTES),
            http2_settings=HTTP2,
            log_level=LogLevels.error,
            log_dictconfig={"handlers": {}, "loggers": {"_granian": {"propagate": True}}},
        )
        self._deployed = deployed
        self._listener = listener
        self._folder = folder
        self._renewal = renewal
        self._first = self._serving(offer)
        self._workers = Workers(self._first, lambda: deployed().file.limits.wall_s + GRACE_S)
        self._has_served = False
        self._spawn_target: Callable[..., None] | None = None
        self.on_serving: Callable[[], None] = lambda: None  # called once

    def _serving(self, offer: Offer | None) -> Serving:
        return Serving(self, self._folder.add(offer.identity) if offer else None, offer)

    def spawn(self, files: TlsFiles | None, protocol: SSLProtocols) -> ServerProcess:
        """Start a worker with these certificates."""
        self.build_ssl_context(
            cert=files.cert if files else None,
            key=files.key if files else None,
            password=None,
            proto=protocol,
            ca=files.client_ca if files else None,
            crl=[],
            client_verify=bool(files and files.client_ca),
        )
        ours, theirs = multiprocessing.Pipe()
        loader = partial(load_app, theirs, self._listener.fileno(), self._deployed.told())
        process = self._spawn_worker(0, self._spawn_target, loader)
        with theirs:
            return ServerProcess(process, ours)

    def taken(self, files: TlsFiles | None) -> None:
        """A worker with these serves now, in the place of another."""
        self._folder.keep(files)
        if self._renewal:
            self._renewal.taken()

    def refused(self, reason: str) -> None:
        """No worker came up with the newest."""
        if self._renewal:
            self._renewal.refused(time.monotonic(), f"no worker started with it: {reason}")

    def signal_handler_interrupt(self, *args: Any, **kwargs: Any) -> None:
        """SIGTERM or SIGINT: drain. The second time: end now, and with us all that we started."""
        if self.interrupt_signal:
            os._exit(1)
        log.info("stopping", grace="running answers may end; the next signal ends them")
        super().signal_handler_interrupt(*args, **kwargs)  # type: ignore[no-untyped-call] # granian's

    def signal_handler_reload(self, *args: Any, **kwargs: Any) -> None:
        """SIGHUP: the terminal was closed, which is a stop like any other."""
        self.signal_handler_interrupt(*args, **kwargs)

    def _init_shared_socket(self) -> None:
        """Ours, inherited by each worker under its number."""
        self._ssp = None
        self._sso = self._listener
        self._listener.set_inheritable(True)
        self._shd = SocketHolder(self._listener.fileno(), False, BACKLOG)  # type: ignore[call-arg, assignment]

    def _spawn_workers(self, spawn_target: Callable[..., None], target_loader: object) -> None:
        self._spawn_target = spawn_target

    def _serve_loop(self, spawn_target: object, target_loader: object) -> None:
        try:
            while not self.interrupt_signal:
                self._turn(time.monotonic())
                self.main_loop_interrupt.wait(TURN_S)
        finally:
            state.say_stopping(self._deployed().state_dir)
            self.workers_kill_timeout = math.ceil(self._deployed().file.server.drain_s)
            for worker in self._workers:
                worker.say(Word.STOP)
            self.wrks[:] = [worker.inner for worker in self._workers]

    def _turn(self, now: float) -> None:
        self._workers.turn(now)
        if not self._has_served:  # nothing is renewed before: it would be what `taken` means
            self._see_first()
        elif self._renewal and (offer := self._renewal.look(now)):
            self._renew(offer, self._renewal, now)

    def _see_first(self) -> None:
        if self._workers.is_serving:
            self._has_served = True
            self._first.taken()
            self.on_serving()

    def _renew(self, offer: Offer, renewal: Renewal, now: float) -> None:
        try:
            serving = self._serving(offer)
        except OSError as fault:  # a disk that is full, say
            renewal.refused(now, f"its files can't be copied: {fault}")
        else:
            self._workers.renew(serving, now)
