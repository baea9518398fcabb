"""Where the node's hosts are, followed by long poll.

A request asks for a place and waits until its model has one; the hot path asks nobody.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

import httpx
from msgspec import MsgspecError, json

from gateway.errors import Unavailable
from gateway.transport import Transport
from runtime.node import Hosts
from runtime.pool import HostState, HostView

POLL_S = 20.0
RETRY_S = 0.25


@dataclass(slots=True)
class Place:
    """Where one request goes: a host's transport and the base of its URLs."""

    host_id: str
    base_url: str
    transport: Transport


class HostDirectory:
    """The hosts of one node, as last heard."""

    def __init__(self, node_socket: str, connect_s: float) -> None:
        self._node_socket = node_socket
        self._connect_s = connect_s
        self._version = 0
        self._views: dict[str, HostView] = {}
        self._places: dict[str, Place] = {}
        self._changed = asyncio.Condition()

    async def follow(self) -> None:
        """Keep asking the node until cancelled. While it is silent, what was known stays."""
        transport = Transport(self._node_socket, connect_s=self._connect_s)
        async with httpx.AsyncClient(transport=transport, base_url="http://node") as node:
            while True:
                try:
                    await self._ask(node)
                except (httpx.HTTPError, TimeoutError, MsgspecError):
                    await asyncio.sleep(RETRY_S)

    async def _ask(self, node: httpx.AsyncClient) -> None:
        query = {"after": str(self._version), "wait_s": str(POLL_S)}
        async with asyncio.timeout(POLL_S + 5):
            answer = await node.get("/hosts", params=query)
        hosts = json.decode(answer.content, type=Hosts)
        if hosts.version == self._version:
            return
        self._version = hosts.version
        self._views = {view.model: view for view in hosts.hosts}
        await self._retire()
        async with self._changed:
            self._changed.notify_all()

    async def _retire(self) -> None:
        """Forget the places of hosts that take no more; what runs there may end."""
        ready = {view.id for view in self._views.values() if view.state is HostState.READY}
        for model, place in list(self._places.items()):
            if place.host_id not in ready:
                del self._places[model]
                await place.transport.retire()

    def ready(self, model: str) -> bool:
        """Whether a host of this model can take a request now."""
        view = self._views.get(model)
        return view is not None and view.state is HostState.READY

    async def place(self, model: str, timeout_s: float, *, avoid: str = "") -> Place:
        """A ready host of `model` other than `avoid`, waited for. Raises Unavailable."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self._usable(model, avoid))
                return self._open(model)
        view = self._views.get(model)
        state = view.state.value if view else "unknown to the node"
        raise Unavailable(
            f"the model has no engine ready after {timeout_s:g} s (it is {state}); try again"
        )

    def _usable(self, model: str, avoid: str) -> bool:
        return self.ready(model) and self._views[model].id != avoid

    def _open(self, model: str) -> Place:
        view = self._views[model]
        place = self._places.get(model)
        if place is None or place.host_id != view.id:
            transport = Transport(view.socket, connect_s=self._connect_s)
            place = self._places[model] = Place(view.id, "http://host/v1", transport)
        return place

    async def aclose(self) -> None:
        """Close the connections to all hosts."""
        for place in self._places.values():
            await place.transport.aclose()
        self._places.clear()
