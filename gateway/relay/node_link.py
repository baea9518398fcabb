"""One node, as a gateway follows it: what it tells by long poll, and what it is told of demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import httpx
import structlog
from msgspec import MsgspecError, json

from gateway.relay.transport import HOST_IDLE_S, Transport
from runtime.config.sections import RemoteNodeSettings
from runtime.node_wire import DEMAND_EVERY_S, Demand, Hosts, HostView
from runtime.tls.contexts import Followed

log = structlog.get_logger()

POLL_S = 20.0
RETRY_S = 0.25
TELL_GAP_S = 0.05  # between two tellings, however often somebody begins to wait
FAULTS = (httpx.HTTPError, TimeoutError, MsgspecError)


class NodeAddress(Protocol):
    """How a node is reached, and its hosts: on this machine, or on another."""

    name: str
    url: str  # the base of the node's routes
    key: Hashable  # equal if it is the same node, reached in the same way
    is_named: bool  # by the configuration; whether there is one on this machine isn't said

    def open(self) -> Transport:
        """A transport to the node itself."""
        ...

    def open_host(self, view: HostView) -> tuple[str, Transport]:
        """The base URL of one of its hosts, ending in /v1, and a transport to it."""
        ...


class LocalNode:
    """The node that shares this gateway's state folder, on its socket."""

    def __init__(self, socket: str, connect_s: float) -> None:
        self.name = "local"
        self.is_named = False
        self.url = "http://node"
        self.key: Hashable = socket
        self._socket = socket
        self._connect_s = connect_s

    def open(self) -> Transport:
        """See NodeAddress."""
        return Transport(self._socket, connect_s=self._connect_s)

    def open_host(self, view: HostView) -> tuple[str, Transport]:
        """See NodeAddress."""
        return "http://host/v1", Transport(view.socket, connect_s=self._connect_s)


class RemoteNode:
    """A node on another machine: HTTPS, with a certificate at both ends."""

    def __init__(self, settings: RemoteNodeSettings, folder: Path, connect_s: float) -> None:
        url = urlsplit(settings.url)
        self.name = url.netloc
        self.is_named = True
        self.url = settings.url.rstrip("/")
        self.key: Hashable = (settings, connect_s)
        self._host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
        self._connect_s = connect_s
        self._tls = Followed(settings.tls, folder)

    def open(self) -> Transport:
        """See NodeAddress."""
        return Transport(connect_s=self._connect_s, tls=self._tls)

    def open_host(self, view: HostView) -> tuple[str, Transport]:
        """See NodeAddress. A host is on its node's machine, on a port of its own."""
        transport = Transport(connect_s=self._connect_s, tls=self._tls, keep_alive_s=HOST_IDLE_S)
        return f"https://{self._host}:{view.port}/v1", transport


class NodeLink:
    """Follows one node. `told` is what it said last; `on_change` is called when that is new."""

    def __init__(
        self,
        address: NodeAddress,
        gateway: str,
        on_change: Callable[[], None],
        demand: Callable[[], Demand],
    ) -> None:
        self.address = address
        self.told = Hosts(version=0)
        self.is_heard = False  # it answered when it was asked last
        self._is_told_silent = False
        self._gateway = gateway
        self._on_change = on_change
        self._demand = demand
        self._due = asyncio.Event()  # somebody began to wait

    async def run(self) -> None:
        """Follow until cancelled. While the node is silent, what was known stays."""
        base, transport = self.address.url, self.address.open()
        async with (
            httpx.AsyncClient(transport=transport, base_url=base) as node,
            asyncio.TaskGroup() as both,
        ):
            both.create_task(self._listen(node))
            both.create_task(self._tell(node))

    def hurry(self) -> None:
        """Tell the demand now."""
        self._due.set()

    async def _listen(self, node: httpx.AsyncClient) -> None:
        while True:
            try:
                await self._ask(node)
                self._heard()
            except FAULTS as fault:
                self._lost(str(fault) or type(fault).__name__)
                await asyncio.sleep(RETRY_S)
            except Exception as fault:  # a bug; who stops following serves from an ever older list
                log.exception("node_link_broke", node=self.address.name)
                self._lost(type(fault).__name__)
                await asyncio.sleep(RETRY_S)

    def _heard(self) -> None:
        if self._is_told_silent:
            log.info("node_heard", node=self.address.name)
        self.is_heard, self._is_told_silent = True, False

    def _lost(self, reason: str) -> None:
        """A line at the change, not for each attempt."""
        if not self._is_told_silent and (self.is_heard or self.address.is_named):
            log.warning("node_silent", node=self.address.name, reason=reason)
            self._is_told_silent = True
        self.is_heard = False

    async def _ask(self, node: httpx.AsyncClient) -> None:
        query = {"after": str(self.told.version), "wait_s": str(POLL_S), "gateway": self._gateway}
        async with asyncio.timeout(POLL_S + 5):
            answer = await node.get("/hosts", params=query)
        hosts = json.decode(answer.content, type=Hosts)
        if hosts.version != self.told.version:
            self.told = hosts
            self._heard()
            self._on_change()  # before the node is asked again, which says that we know

    async def _tell(self, node: httpx.AsyncClient) -> None:
        was_needed = False
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(DEMAND_EVERY_S):
                    await self._due.wait()
            self._due.clear()
            demand = self._demand()
            if demand.models or was_needed:
                was_needed = await self._put(node, demand)
                await asyncio.sleep(TELL_GAP_S)

    async def _put(self, node: httpx.AsyncClient, demand: Demand) -> bool:
        """Whether the node must be told again: there is demand, or it couldn't be told."""
        with suppress(*FAULTS):
            async with asyncio.timeout(DEMAND_EVERY_S):
                path, body = f"/demand/{self._gateway}", json.encode(demand)
                answer = await node.put(path, content=body)
                return bool(demand.models) or answer.status_code >= 400
        return True
