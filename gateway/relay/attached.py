"""The servers attached by URL: a transport for each way to reach one.

A way lives for as long as the configuration has it, through any number of reloads, and then until
its last answer has ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from gateway.catalog.catalog import Deployment
from gateway.relay.place import Place
from gateway.relay.transport import Transport
from gateway.relay.troubles import Troubles
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


def way_to(deployment: Deployment, connect_s: float) -> Way:
    """How the server of a deployment is reached."""
    return Way(deployment.url, connect_s, deployment.tls)


class AttachedServers:
    """The ways that are open. Models on one server share one."""

    def __init__(self) -> None:
        self._transports: dict[Way, Transport] = {}
        self._places: dict[tuple[str, Way], Place] = {}
        self.troubles = Troubles()

    def place(self, deployment: Deployment, connect_s: float) -> Place:
        """Where requests to this deployment go. Opens nothing by itself."""
        way = way_to(deployment, connect_s)
        place = self._places.get((deployment.id, way))
        if place is None:
            if way not in self._transports:
                self._transports[way] = way.open()
            transport = self._transports[way]
            place = Place(deployment.id, deployment.url, transport)
            self._places[deployment.id, way] = place
        return place

    async def keep(self, ways: Iterable[Way]) -> None:
        """Let all other ways go; what runs there may end.

        A request of before, that has yet to be sent, may still open one of them again. It is then
        let go the next time.
        """
        kept = set(ways)
        self.troubles.keep({way.url for way in kept})
        gone = self._transports.keys() - kept
        self._places = {key: place for key, place in self._places.items() if key[1] not in gone}
        for way in gone:
            await self._transports.pop(way).retire()

    async def aclose(self) -> None:
        """Close every connection."""
        for transport in self._transports.values():
            await transport.aclose()
        self._transports.clear()
        self._places.clear()
