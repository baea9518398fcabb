"""The operator's side of a process: request events and the admin API, in a thread of its own.

Of the processes on one state folder, one has the listener: whoever takes the role first, and after
its end another. So `node` and `gateway` may run beside each other with one configuration.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from typing import Any, Self

import structlog
import uvicorn

from gateway import address
from gateway.address import Address
from gateway.admin import key
from gateway.admin.api import AdminApi
from gateway.admin.hub import EventHub
from gateway.admin.node_client import NodeClient
from gateway.admin.status import Process
from gateway.deployed import Deployed
from runtime import rundir, settings as config, state
from runtime.host.process import HostServer
from runtime.settings import Settings
from runtime.tls.contexts import server_context
from runtime.tls.listener import PortInUse, bind, listen

log = structlog.get_logger()

POLL_S = 0.5
DRAIN_S = 2
MAX_CONNECTIONS = 128
MAX_HEADER_BYTES = 16384


class AdminThread:
    """A context: its thread runs while the block does."""

    def __init__(self, settings: Settings, command: str) -> None:
        self._settings = settings
        self._process = Process(
            command=command, pid=os.getpid(), began=time.time(), began_monotonic=time.monotonic()
        )
        self._thread = threading.Thread(target=self._run, name="admin", daemon=True)
        self._told = asyncio.Event()
        self._held = ExitStack()  # the role and the port
        self._sock: socket.socket | None = None
        self._tls: ssl.SSLContext | None = None
        self.hub = EventHub(rundir.events_socket(settings.state_dir))
        self.node = NodeClient(rundir.node_socket(settings.state_dir))

    def __enter__(self) -> Self:
        """Listens when this returns, unless another process does.

        Raises PortInUse, BadAdminKey or BadCertificate.
        """
        admin = self._settings.file.admin
        rundir.make(self._settings.state_dir)
        self._key = key.ensure(self._settings.state_dir, config.caller().admin_key)
        if admin.port:
            if admin.tls.cert:
                self._tls = server_context(admin.tls, self._settings.folder)
            with suppress(state.StateInUse):
                self._sock = self._take()
        self._loop = asyncio.new_event_loop()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Returns when all is closed."""
        self._loop.call_soon_threadsafe(self._told.set)
        self._thread.join()
        self._held.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        """Have a coroutine run in the thread's loop, for instance one that listens to the hub."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _take(self) -> socket.socket:
        """The role and its port. Raises StateInUse while another has the role, or PortInUse."""
        admin = self._settings.file.admin
        with ExitStack() as stack:
            stack.enter_context(state.own(self._settings.state_dir, "admin"))
            sock = stack.enter_context(
                bind(admin.host, admin.port, option="--admin-port or BULKHEAD_ADMIN_PORT")
            )
            listen(sock)
            self._held = stack.pop_all()
        return sock

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # ends what was spawned
            runner.run(self._main())

    async def _main(self) -> None:
        serving = asyncio.ensure_future(self._serve()) if self._settings.file.admin.port else None
        await self._told.wait()
        self.hub.close()
        if serving:
            await serving

    async def _serve(self) -> None:
        try:
            if sock := self._sock or await self._take_over():
                await self._answer(sock)
        except Exception:  # requests go on without, and so does the hub
            log.exception("admin_failed")

    async def _answer(self, sock: socket.socket) -> None:
        server = HostServer(self._config())
        serving = asyncio.ensure_future(server.serve(sockets=[sock]))
        here = where(self._settings)
        address.publish(self._settings.state_dir, "admin", here)
        log.info("admin_started", url=here.url)
        await self._told.wait()
        address.withdraw(self._settings.state_dir, "admin")
        server.should_exit = True
        await serving

    async def _take_over(self) -> socket.socket | None:
        """Waits for the role until told to stop."""
        while not self._told.is_set():
            with suppress(state.StateInUse, PortInUse):
                return await asyncio.to_thread(self._take)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._told.wait(), POLL_S)
        return None

    def _config(self) -> uvicorn.Config:
        tls = self._tls
        api = AdminApi(Deployed(self._settings), self.node, self.hub, self._process)
        return uvicorn.Config(
            api.asgi(self._key),
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MAX_CONNECTIONS,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            timeout_graceful_shutdown=DRAIN_S,
            ssl_context_factory=(lambda _config, _default: tls) if tls else None,
        )


def where(settings: Settings) -> Address:
    """Where commands on this machine find it."""
    admin = settings.file.admin
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(admin.host, admin.host)  # noqa: S104
    scheme = "https" if admin.tls.cert else "http"
    return Address(
        url=f"{scheme}://{f'[{host}]' if ':' in host else host}:{admin.port}",
        certificate=str(settings.folder / admin.tls.cert) if admin.tls.cert else "",
    )
