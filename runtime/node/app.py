"""What a node answers, on its socket and to other machines. Its words are in `node_wire`."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Protocol

import uvicorn
from msgspec import MsgspecError, json
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from runtime.host.process import HostServer, Remote, listen
from runtime.node.board import ACKNOWLEDGE_S, Board
from runtime.node.demand import Demands
from runtime.node.faults import FaultRoutes
from runtime.node_wire import Demand, GoneHost, Hosts
from runtime.tls.contexts import server_context
from runtime.tls.listener import BACKLOG

MAX_WAIT_S = 60.0


class Telling(Protocol):
    """What a node has to tell, and takes in."""

    board: Board
    demands: Demands

    @property
    def is_dev(self) -> bool: ...
    def hosts(self) -> Hosts: ...
    def gone(self) -> list[GoneHost]: ...
    def look_again(self) -> None: ...
    def restart(self, model: str) -> bool: ...


class NodeApp:
    """HTTP around one node. The socket's mode (0600) keeps others out, or a client certificate."""

    def __init__(self, node: Telling) -> None:
        self._node = node

    def asgi(self) -> Starlette:
        """The app."""
        return Starlette(
            routes=[
                Route("/hosts", self._hosts),
                Route("/gone", self._gone),
                Route("/demand/{gateway}", self._demand, methods=["PUT"]),
                Route("/models/{model:path}/restart", self._restart, methods=["POST"]),
                *FaultRoutes(self._node).routes(),
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

    async def _gone(self, _: Request) -> Response:
        return _encoded(self._node.gone())

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
        # who asks for the model next must not meet a gateway that still refuses it
        await self._node.board.acknowledged(ACKNOWLEDGE_S)
        return _encoded(self._node.hosts())


class Door:
    """Where gateways on other machines come in. Raises BadCertificate."""

    def __init__(self, sock: socket.socket, remote: Remote) -> None:
        self.sock = sock
        self.remote = remote
        self.tls = server_context(remote.tls, Path(remote.folder))


class NodeServer:
    """A node on its socket, and at its door if there is one."""

    def __init__(self, node: Telling, path: Path, door: Door | None) -> None:
        self._path = path
        self._servers = [(_server(node), listen(path))]
        if door:
            door.sock.listen(BACKLOG)
            self._servers.append((_server(node, door.tls), door.sock))

    async def serve(self) -> None:
        """Until `stop`."""
        await asyncio.gather(*(server.serve(sockets=[sock]) for server, sock in self._servers))
        self._path.unlink(missing_ok=True)

    def stop(self) -> None:
        """Answer what is being asked, and nothing more."""
        for server, _ in self._servers:
            server.should_exit = True


def _server(node: Telling, tls: ssl.SSLContext | None = None) -> HostServer:
    return HostServer(
        uvicorn.Config(
            NodeApp(node).asgi(),
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=2,
            ssl_context_factory=(lambda _config, _default: tls) if tls else None,
        )
    )


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _encoded(hosts: Hosts | list[GoneHost]) -> Response:
    return Response(json.encode(hosts), media_type="application/json")
