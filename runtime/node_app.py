"""What a node answers on its socket. Its words are in `node_wire`."""

from __future__ import annotations

import asyncio
from typing import Protocol

from msgspec import MsgspecError, json
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from runtime.board import Board
from runtime.demand import Demands
from runtime.node_wire import Demand, Hosts

MAX_WAIT_S = 60.0


class Telling(Protocol):
    """What a node has to tell, and takes in."""

    board: Board
    demands: Demands

    def hosts(self) -> Hosts: ...
    def look_again(self) -> None: ...
    def restart(self, model: str) -> bool: ...


class NodeApp:
    """HTTP around one node. The socket's mode (0600) keeps others out."""

    def __init__(self, node: Telling) -> None:
        self._node = node

    def asgi(self) -> Starlette:
        """The app."""
        return Starlette(
            routes=[
                Route("/hosts", self._hosts),
                Route("/demand/{gateway}", self._demand, methods=["PUT"]),
                Route("/models/{model:path}/restart", self._restart, methods=["POST"]),
            ]
        )

    async def _hosts(self, request: Request) -> Response:
        query = request.query_params
        try:
            after, wait_s = int(query.get("after", 0)), float(query.get("wait_s", 0))
        except ValueError:
            return JSONResponse({"error": "after and wait_s are numbers"}, 400)
        if wait_s > 0:
            await self._wait(request, query.get("gateway", ""), after, min(MAX_WAIT_S, wait_s))
        return _encoded(self._node.hosts())

    async def _wait(self, request: Request, gateway: str, after: int, wait_s: float) -> None:
        """Until there is something new, the time is up, or the caller has left."""
        board = self._node.board
        if gateway:
            board.begin(gateway, after)
        newer = asyncio.ensure_future(board.newer_than(after))
        gone = asyncio.ensure_future(_disconnect(request))
        try:
            await asyncio.wait((newer, gone), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if gateway:
                board.end(gateway, is_gone=gone.done())
            newer.cancel()
            gone.cancel()

    async def _demand(self, request: Request) -> Response:
        try:
            demand = json.decode(await request.body(), type=Demand)
        except MsgspecError as fault:
            return JSONResponse({"error": str(fault)}, 400)
        self._node.demands.tell(request.path_params["gateway"], demand)
        self._node.look_again()
        return Response(status_code=204)

    async def _restart(self, request: Request) -> Response:
        if not self._node.restart(model := request.path_params["model"]):
            return JSONResponse({"error": f"there is no model {model!r}"}, 404)
        return _encoded(self._node.hosts())


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _encoded(hosts: Hosts) -> Response:
    return Response(json.encode(hosts), media_type="application/json")
