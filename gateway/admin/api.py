"""The admin API: its routes, as a Starlette app that is never mounted in the public one."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from anyio import to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp

from gateway.admin import documented, filters, host_client, reads
from gateway.admin.attached import attached_model
from gateway.admin.changes.audit_log import AuditLog
from gateway.admin.changes.budgets import Budgets
from gateway.admin.changes.changing import Changing
from gateway.admin.changes.corrections import Corrections
from gateway.admin.changes.keys import Keys
from gateway.admin.changes.leaks import Leaks
from gateway.admin.changes.limits import Limits
from gateway.admin.changes.tenants import Tenants
from gateway.admin.exports import Exports
from gateway.admin.guard import Guard, answer, on_bug, on_problem
from gateway.admin.hub import EventHub
from gateway.admin.node_client import NodeClient
from gateway.admin.pages import page_of
from gateway.admin.problems import NoSuchHost, NoSuchModel, NoSuchRoute, Problem, WrongMethod
from gateway.admin.query import single
from gateway.admin.status import Process, status
from gateway.admin.tail import Tail
from gateway.metrics import families, socket
from gateway.stores import database_of
from runtime import rundir
from runtime.config.models import ModelSettings
from runtime.deploy.running import troubles
from runtime.metrics import CONTENT_TYPE
from runtime.settings import Settings


class AdminApi:
    """What the routes need. `settings` tells those that are in force now."""

    def __init__(
        self, settings: Callable[[], Settings], node: NodeClient, hub: EventHub, process: Process
    ) -> None:
        self._settings = settings
        self._node = node
        self._hub = hub
        self._process = process

    def asgi(self, key: str) -> ASGIApp:
        """The whole app, for those who know `key`."""
        admin = self._settings().file.admin
        app = Starlette(
            routes=self.routes(),
            exception_handlers={
                Problem: on_problem,
                HTTPException: on_http_error,
                Exception: on_bug,
            },
        )
        return Guard(app, key, {admin.host, *admin.names})

    def routes(self) -> list[Route]:
        """All there are."""
        exports, changing = Exports(self._settings), Changing(self._settings)
        parts = (Tenants, Keys, Limits, Budgets, Corrections, Leaks, AuditLog)
        changes = [route for part in parts for route in part(changing).routes()]
        return [
            Route("/admin/v1/status", self.status),
            Route("/admin/v1/hosts", self.hosts),
            Route("/admin/v1/hosts/{id}/pages", self.pages),
            Route("/admin/v1/metrics", self.metrics),
            Route("/admin/v1/models", self.models),
            Route("/admin/v1/openapi.json", self.openapi),
            Route("/admin/v1/models/{model:path}/faults", self.fault_kinds),
            Route("/admin/v1/models/{model:path}/faults/{kind}", self.plant, methods=["POST"]),
            Route("/admin/v1/models/{model:path}/restart", self.restart, methods=["POST"]),
            Route("/admin/v1/requests", self.requests),
            Route("/admin/v1/tail", self.tail),
            Route("/admin/v1/tenants", self.tenants),
            Route("/admin/v1/usage/export", exports.usage),
            Route("/admin/v1/usage/export/manifest", exports.manifest),
            *changes,
        ]

    async def status(self, request: Request) -> Response:
        """What runs here."""
        _no_query(request)
        return JSONResponse(await to_thread.run_sync(status, self._settings(), self._process))

    async def hosts(self, request: Request) -> Response:
        """The node's hosts."""
        _no_query(request)
        found = await self._node.hosts()
        data = [{"object": "host", **msgspec.to_builtins(host)} for host in found.hosts]
        told = {"deployment": found.deployment, "attached": await self._servers()}
        return JSONResponse({"object": "list", "data": data} | told)

    async def pages(self, request: Request) -> Response:
        """Where one host's pages are."""
        _no_query(request)
        found, id = await self._node.hosts(), request.path_params["id"]
        for host in found.hosts:
            if host.id == id:
                told = msgspec.to_builtins(await host_client.pages(host))
                head = {"object": "page_map", "host": host.id, "model": host.model}
                return Response(msgspec.json.encode(head | told), media_type="application/json")
        raise NoSuchHost(f"the node has no host {id[:64]!r}; see `bulkhead hosts list`")

    async def metrics(self, request: Request) -> Response:
        """All hosts' counters, those of hosts just ended too, and gateways', for Prometheus."""
        _no_query(request)
        text = await host_client.all_metrics((await self._node.hosts()).hosts, self._node.gone)
        gateways = await socket.ask_all(rundir.runtime_dir(self._settings().state_dir))
        return PlainTextResponse(text + families.text(gateways), media_type=CONTENT_TYPE)

    async def fault_kinds(self, request: Request) -> Response:
        """The faults that can be planted in a model's hosts."""
        _no_query(request)
        found = await self._node.fault_kinds(request.path_params["model"])
        data = [{"object": "fault"} | one for one in found]
        return JSONResponse({"object": "list", "data": data})

    async def plant(self, request: Request) -> Response:
        """Plant one, on a development machine."""
        _no_query(request)
        model, kind = request.path_params["model"], request.path_params["kind"]
        done = await self._node.plant(model, kind)
        return JSONResponse({"object": "planted_fault", "model": model} | done)

    async def models(self, request: Request) -> Response:
        """The models: those of the node's pools, and those of attached servers."""
        _no_query(request)
        found = await self._node.hosts()
        data = [{"object": "model", **msgspec.to_builtins(model)} for model in found.models]
        data += [{"object": "model"} | server for server in await self._servers()]
        return JSONResponse({"object": "list", "data": data, "deployment": found.deployment})

    async def _servers(self) -> list[dict[str, object]]:
        """The attached servers by model, and what went wrong with each last, if anything did."""
        settings = self._settings()
        told = await to_thread.run_sync(troubles, settings.state_dir)
        return [attached_model(model, told.get(model.id, {})) for model in self._attached()]

    def _attached(self) -> list[ModelSettings]:
        return [model for model in self._settings().file.models if model.is_attached]

    async def openapi(self, request: Request) -> Response:
        """What all of these take and give."""
        _no_query(request)
        return Response(documented.encoded(), media_type="application/json")

    async def restart(self, request: Request) -> Response:
        """Forget a model's failures and replace its hosts, one by one."""
        _no_query(request)
        model = request.path_params["model"]
        for attached in self._attached():
            if attached.id == model:
                raise NoSuchModel(
                    f"{model!r} is attached ({', '.join(attached.urls)}), and there are no hosts "
                    "of ours to replace; restart its server itself"
                )
        await self._node.restart(model)
        return JSONResponse({"object": "restart", "model": model}, 202)

    async def requests(self, request: Request) -> Response:
        """The last requests, from the ledger."""
        after, limit = reads.page_of(request.query_params.multi_items())
        database = database_of(self._settings())
        return JSONResponse(await reads.requests(database, after, limit))

    async def tail(self, request: Request) -> Response:
        """Requests as they end."""
        return Tail(self._hub, filters.parse(request.query_params.multi_items()))

    async def tenants(self, request: Request) -> Response:
        """Who is billed."""
        found = await reads.tenants(database_of(self._settings()))
        return JSONResponse(page_of(found, request.query_params.multi_items()))


def _no_query(request: Request) -> None:
    single(request.query_params.multi_items(), ())


def _methods(request: Request) -> list[str]:
    """What the path takes, by all of its routes: Starlette tells the first one's alone."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    found = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in found for method in route.methods or ()})


async def on_http_error(request: Request, fault: Exception) -> Response:
    """What Starlette's routing raises, as a problem."""
    assert isinstance(fault, HTTPException)
    path, request_id = request.url.path[:128], request.state.request_id
    if fault.status_code == 405:
        allow = ", ".join(_methods(request))
        return answer(WrongMethod(f"{path} takes {allow}", allow=allow), request_id)
    return answer(NoSuchRoute(f"there is no route {path}; see docs/api.md"), request_id)
