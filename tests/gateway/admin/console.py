"""An operator's side for the tests: the admin app over a real store, and a scripted node."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from msgspec import json
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from gateway.admin.api import AdminApi
from gateway.admin.hub import EventHub
from gateway.admin.node_client import NodeClient
from gateway.admin.problems import TABLE
from gateway.admin.status import Process
from gateway.identity import keys
from gateway.identity.api_keys import create_key
from gateway.identity.tenants import create_tenant
from gateway.store.connection import DATABASE, open_for_writing
from gateway.store.migrate import migrate
from runtime.config.models import ModelSettings
from runtime.config.sections import AdminSettings, FileSettings
from runtime.node_wire import Hosts, HostState, HostView, ModelState, ModelView
from runtime.settings import Settings
from tests.runtime.servers import serving

HOSTS = Hosts(
    version=7,
    deployment=3,
    hosts=[
        HostView(id="host-1", model="@cf/echo", state=HostState.READY, pid=12, rss_bytes=1000),
    ],
    models=[
        ModelView(id="@cf/echo", state=ModelState.READY, hosts=1, waiting=2, failures=1, reason="x")
    ],
)


@dataclass
class Console:
    """The app, its key, and what the node was told."""

    app: ASGIApp
    hub: EventHub
    settings: Settings
    key: str
    tenant_key: str
    restarted: list[str] = field(default_factory=list)

    def client(self, **headers: str) -> httpx.AsyncClient:
        """Calls the app in this loop, with the key."""
        given = {"authorization": f"Bearer {self.key}"} | headers
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=given)


@asynccontextmanager
async def console(folder: Path, *, with_node: bool = True) -> AsyncIterator[Console]:
    """A store with the tenant acme, one model of a node's and one by URL."""
    there = ModelSettings(id="far", engine="openai", url="http://far.example/v1")
    here = ModelSettings(id="@cf/echo", engine="fake")
    file = FileSettings(models=(here, there), admin=AdminSettings(names=("Console.Example",)))
    settings = Settings(file=file, config_path="", state_dir=folder / "state")
    settings.state_dir.mkdir()
    migrate(settings.state_dir / DATABASE)
    with closing(open_for_writing(settings.state_dir / DATABASE)) as db:
        create_tenant(db, "acme")
        _, tenant_key = create_key(db, "acme", "laptop", b"pepper")
    hub = EventHub(folder / "events.sock")
    process = Process(command="dev", pid=1, began=0.0, began_monotonic=time.monotonic())
    api = AdminApi(lambda: settings, NodeClient(folder / "node.sock"), hub, process)
    key = keys.mint(keys.ADMIN_PREFIX)
    found = Console(api.asgi(key), hub, settings, key, tenant_key)
    if not with_node:
        yield found
        return
    async with serving(scripted_node(found.restarted), folder / "node.sock"):
        yield found


def scripted_node(restarted: list[str]) -> ASGIApp:
    """Answers as the node does, and writes down what it is told."""

    async def hosts(_: Request) -> Response:
        return Response(json.encode(HOSTS), media_type="application/json")

    async def restart(request: Request) -> Response:
        model = request.path_params["model"]
        if model != "@cf/echo":
            return Response(status_code=404)
        restarted.append(model)
        return Response(status_code=202)

    return Starlette(
        routes=[
            Route("/hosts", hosts),
            Route("/models/{model:path}/restart", restart, methods=["POST"]),
        ]
    )


def is_problem(answer: httpx.Response, name: str) -> dict[str, Any]:
    """RFC 9457, every member there, and the status of the table."""
    body: dict[str, Any] = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert set(body) == {"type", "title", "status", "detail", "instance"}
    row = next(row for row in TABLE.values() if row.name == name)
    assert body["type"] == f"urn:bulkhead:problem:{name}"
    assert body["status"] == answer.status_code == row.status
    assert body["instance"] == answer.headers["x-request-id"]
    assert answer.headers["cache-control"] == "no-store"
    return body
