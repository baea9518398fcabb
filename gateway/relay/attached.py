"""The servers attached by URL: a transport for each way to reach one, and how each of them does.

A way lives for as long as the configuration has it, through any number of reloads, and then until
its last answer has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from gateway.catalog.catalog import Deployment, Server
from gateway.relay.breaker import State
from gateway.relay.place import Place
from gateway.relay.prompt_ids import PromptEncoders
from gateway.relay.retries import RetryBudget
from gateway.relay.transport import Transport
from gateway.relay.troubles import Troubles
from gateway.relay.trust import Trust
from runtime.config.tls import ClientTls
from runtime.tls.contexts import Followed


class Way(NamedTuple):
    """What makes one transport differ from another."""

    url: str
    connect_s: float
    tls: ClientTls

    def open(self) -> Transport:
        """Its transport, which follows the certificate files."""
        tls = Followed(self.tls, Path("/")) if self.tls != ClientTls() else None
        return Transport(connect_s=self.connect_s, tls=tls)


def ways_to(deployment: Deployment, connect_s: float) -> list[Way]:
    """How the servers of a deployment are reached."""
    return [Way(server.url, connect_s, server.tls) for server in deployment.servers]


class AttachedServers:
    """The ways that are open. Models on one server share one."""

    def __init__(self) -> None:
        self._transports: dict[Way, Transport] = {}
        self._places: dict[tuple[str, Way], Place] = {}
        self._last: dict[str, tuple[Deployment, float, list[Place]]] = {}  # what was asked for
        self._budgets: dict[str, RetryBudget] = {}
        self.suspects: set[Place] = set()  # to be probed soon
        self.troubles = Troubles()
        self.encoders = PromptEncoders()

    def places(self, deployment: Deployment, connect_s: float) -> list[Place]:
        """Where requests to this deployment go. Opens nothing by itself."""
        last = self._last.get(deployment.id)
        if last is not None and last[0] is deployment and last[1] == connect_s:
            return last[2]
        ways = ways_to(deployment, connect_s)
        pairs = zip(deployment.servers, ways, strict=True)
        places = [self._place(deployment, server, way) for server, way in pairs]
        self._last[deployment.id] = deployment, connect_s, places
        return places

    def budget(self, model: str) -> RetryBudget:
        """A model's purse of retries."""
        return self._budgets.setdefault(model, RetryBudget())

    def each(self) -> Iterator[tuple[Deployment, Place]]:
        """All that requests were or may be sent to."""
        for deployment, _, places in list(self._last.values()):
            for place in places:
                yield deployment, place

    def succeeded(self, place: Place) -> None:
        """An answer came from there to its end."""
        place.breaker.succeed(asyncio.get_running_loop().time())

    def failed(self, model: str, place: Place, reason: str) -> None:
        """It was reached, and it failed: that counts against it."""
        self.troubles.failed(model, place.base_url, reason)
        self._count(model, place)

    def unreachable(self, model: str, place: Place, reason: str) -> None:
        """There was no connection."""
        self.troubles.unreachable(model, place.base_url, reason)
        self._count(model, place)

    def _count(self, model: str, place: Place) -> None:
        if place.breaker.fail(asyncio.get_running_loop().time()):
            self.troubles.breaker(model, place.base_url, State.OPEN)

    def _place(self, deployment: Deployment, server: Server, way: Way) -> Place:
        place = self._places.get((deployment.id, way))
        if place is None:
            if way not in self._transports:
                self._transports[way] = way.open()
            name = deployment.id
            if len(deployment.servers) > 1:
                name = f"{name}@{urlsplit(server.url).netloc}"
            place = Place(name, server.url, self._transports[way], server=server)
            self._places[deployment.id, way] = place
        place.server = server  # its key and its share of the load may be others by now
        if not server.guard_url:
            place.guard = None
        elif place.guard is None:  # no request goes there before it is heard
            place.guard = Trust(asyncio.get_running_loop().time())
        return place

    async def keep(self, deployments: Iterable[Deployment], connect_s: float) -> None:
        """Let all other ways go; what runs there may end.

        A request of before, that has yet to be sent, may still open one of them again. It is then
        let go the next time.
        """
        attached = [deployment for deployment in deployments if deployment.is_attached]
        await self.encoders.keep(one.tokenizer for one in attached if one.tokenizer)
        kept = {way for deployment in attached for way in ways_to(deployment, connect_s)}
        self.troubles.keep({way.url for way in kept})
        gone = self._transports.keys() - kept
        self._places = {key: place for key, place in self._places.items() if key[1] not in gone}
        self._last.clear()
        for deployment in attached:
            self.places(deployment, connect_s)
        for way in gone:
            await self._transports.pop(way).retire()

    async def aclose(self) -> None:
        """Close every connection."""
        for transport in self._transports.values():
            await transport.aclose()
        self._transports.clear()
        self._places.clear()
        self._last.clear()
