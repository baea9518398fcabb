"""Faults to plant in a model's engine, handed on to the host that is busiest. For `dev` alone.

The node refuses first, and the host once more: neither relies on the other.
"""

from __future__ import annotations

from typing import Protocol

import httpx
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from runtime.node import probe
from runtime.node_wire import Hosts, HostState, HostView

TIMEOUT_S = 30.0  # a step may take long, and the fault waits for its end
NOT_DEV = "faults are planted by `bulkhead dev` alone, and this node wasn't started by it"


class Node(Protocol):
    """What is asked of the node."""

    @property
    def is_dev(self) -> bool: ...
    def hosts(self) -> Hosts: ...


class FaultRoutes:
    """The routes, around one node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def routes(self) -> list[Route]:
        """All there are."""
        return [
            Route("/models/{model:path}/faults", self._kinds),
            Route("/models/{model:path}/faults/{kind}", self._plant, methods=["POST"]),
        ]

    async def _kinds(self, request: Request) -> Response:
        return await self._handed_on(request, "GET", "/faults")

    async def _plant(self, request: Request) -> Response:
        return await self._handed_on(request, "POST", f"/faults/{request.path_params['kind']}")

    async def _handed_on(self, request: Request, method: str, path: str) -> Response:
        if not self._node.is_dev:
            return _refused("not_development", NOT_DEV, 403)
        told, model = self._node.hosts(), request.path_params["model"]
        if model not in [one.id for one in told.models]:
            return _refused("no_such_model", f"there is no model {model[:128]!r}", 404)
        host = _busiest([host for host in told.hosts if host.model == model])
        if host is None:
            return _refused("no_host", f"no host of {model} is ready: send it a request", 409)
        try:
            async with probe.client(host.socket, TIMEOUT_S) as http:
                answer = await http.request(method, path)
        except httpx.HTTPError as fault:
            return _refused("no_host", f"{host.id} is gone ({type(fault).__name__})", 409)
        headers = {"x-host": host.id}
        return Response(answer.content, answer.status_code, headers, "application/json")


def _busiest(hosts: list[HostView]) -> HostView | None:
    ready = [host for host in hosts if host.state is HostState.READY]
    return max(ready, key=lambda host: host.in_flight, default=None)


def _refused(code: str, message: str, status: int) -> Response:
    return JSONResponse({"error": {"code": code, "message": message}}, status)
