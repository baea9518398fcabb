"""Where our own engines are: follows the nodes, and keeps the lines' places as they tell.

A model may have hosts on several nodes. The first of them that can start one more is told of the
requests that wait; each is told of what runs on its own hosts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from gateway.ids import new_id
from gateway.relay.node_link import NodeAddress, NodeLink
from gateway.relay.place import Place, Share
from gateway.relay.placement import Line, Placement
from runtime.node_wire import Demand, HostState, HostView, ModelDemand, ModelState, ModelView

NOTHING = ModelDemand()
BEST_FIRST = (
    ModelState.READY,
    ModelState.STARTING,
    ModelState.COLD,
    ModelState.WAITING_FOR_MEMORY,
    ModelState.FAILED,
)


class HostDirectory:
    """The hosts of all nodes, as last heard."""

    def __init__(self, nodes: Sequence[NodeAddress], placement: Placement) -> None:
        self._placement = placement
        self._gateway = new_id("gw")
        self._nodes = [_Node(address, self._gateway, self) for address in nodes]
        self._links: asyncio.TaskGroup | None = None  # while they are followed
        self._retiring: set[asyncio.Task[None]] = set()
        placement.on_wait = self._hurry

    async def follow(self) -> None:
        """Follow every node until cancelled."""
        async with asyncio.TaskGroup() as self._links:
            for node in self._nodes:
                node.follow(self._links)
            await asyncio.Event().wait()  # others may come

    def keep(self, addresses: Sequence[NodeAddress]) -> None:
        """Follow these nodes from now on. What runs on the hosts of others may end."""
        kept = {node.link.address.key: node for node in self._nodes}
        nodes = [
            kept.pop(address.key) if address.key in kept else _Node(address, self._gateway, self)
            for address in addresses
        ]
        new, self._nodes = [node for node in nodes if node not in self._nodes], nodes
        for node in kept.values():
            node.leave()
            places, models = node.every_place(), list(node.places)
            node.places.clear()
            for model in models:
                self._update_line(self._placement.line(model))
            for place in places:
                self._background(place.transport.retire())
        if self._links:
            for node in new:
                node.follow(self._links)

    def is_heard(self) -> bool:
        """Whether any node answers."""
        return any(node.link.is_heard for node in self._nodes)

    def ready(self, model: str) -> bool:
        """Whether a host of this model can take a request now."""
        return any(model in node.places and node.places[model] for node in self._nodes)

    def state(self, model: str) -> ModelState:
        """What a request for this model can expect, of the node where that is best."""
        if self.ready(model):
            return ModelState.READY
        told = [view.state for node in self._nodes if (view := node.model(model))]
        return min(told, key=BEST_FIRST.index, default=ModelState.COLD)

    async def aclose(self) -> None:
        """Close the connections to all hosts."""
        for node in self._nodes:
            for place in node.every_place():
                await place.transport.aclose()
            node.places.clear()

    def update(self, node: _Node) -> None:
        """Take in what a node has told: its hosts become places, and others are let go."""
        gone = node.follow_hosts()
        models = {view.id for view in node.link.told.models} | node.places.keys()
        for model in models:
            self._update_line(self._placement.line(model))
        for place in gone:
            self._background(place.transport.retire())

    def _update_line(self, line: Line) -> None:
        views = [view for node in self._nodes if (view := node.model(line.model))]
        places = [place for node in self._nodes for place in node.places.get(line.model, ())]
        if views:
            line.state = views[0].state.value.replace("_", " ")
        failed = not places and views and all(v.state is ModelState.FAILED for v in views)
        if failed and not line.has_failed:
            line.fail()
        line.has_failed = bool(failed)
        line.set_places(places)

    def demand(self, node: _Node) -> Demand:
        """What a node is told: what runs on its hosts, and who waits for it to start one."""
        found = {}
        for line in self._placement.lines():
            in_flight, tokens = node.share(line.model).told()
            waits = line.waiting_told() if self._starts(line.model) is node else NOTHING
            if in_flight or waits.waiting:
                found[line.model] = ModelDemand(
                    waiting=waits.waiting, in_flight=in_flight, tokens=tokens + waits.tokens
                )
        return Demand(models=found)

    def _starts(self, model: str) -> _Node | None:
        """The node that is to start this model's next host."""
        known = [(node, view) for node in self._nodes if (view := node.model(model))]
        able = [node for node, view in known if _has_room(view)]
        return next(iter(able or [node for node, _ in known]), None)

    def _hurry(self) -> None:
        for node in self._nodes:
            node.link.hurry()

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)


class _Node:
    """One node: the link to it, and what its hosts are to us."""

    def __init__(self, address: NodeAddress, gateway: str, directory: HostDirectory) -> None:
        self.link = NodeLink(
            address, gateway, lambda: directory.update(self), lambda: directory.demand(self)
        )
        self.places: dict[str, list[Place]] = {}
        self._shares: dict[str, Share] = {}
        self._following: asyncio.Task[None] | None = None

    def follow(self, links: asyncio.TaskGroup) -> None:
        """Begin to hear of it, and to tell it."""
        self._following = links.create_task(self.link.run())

    def leave(self) -> None:
        """Hear no more of it."""
        if self._following:
            self._following.cancel()

    def share(self, model: str) -> Share:
        """What its hosts of a model have in flight."""
        return self._shares.setdefault(model, Share())

    def model(self, model: str) -> ModelView | None:
        """What it says of a model."""
        return next((view for view in self.link.told.models if view.id == model), None)

    def every_place(self) -> list[Place]:
        """Its places for all models."""
        return [place for places in self.places.values() for place in places]

    def follow_hosts(self) -> list[Place]:
        """A place for each host that takes requests; returns those that are given up."""
        known = {place.host_id: place for place in self.every_place()}
        ready = [view for view in self.link.told.hosts if view.state is HostState.READY]
        self.places = {model: [] for model in self.places}
        for view in ready:
            place = known.pop(view.id, None) or self._open(view)
            self.places.setdefault(view.model, []).append(place)
        return list(known.values())

    def _open(self, view: HostView) -> Place:
        base_url, transport = self.link.address.open_host(view)
        return Place(view.id, base_url, transport, self.share(view.model))


def _has_room(view: ModelView) -> bool:
    stuck = (ModelState.FAILED, ModelState.WAITING_FOR_MEMORY)
    return view.state not in stuck and view.hosts < view.max_hosts
