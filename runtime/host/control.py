"""What a host tells its node and operators, and is told by them, on the socket that is its own.

GET /health, /stats, /metrics, /pages   how it is, its counters (also for Prometheus), its pages
POST /drain                             take no new request; those that run go on
GET /faults, POST /faults/{kind}        faults to plant in its engine: of a host made by `dev` alone
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from engines import registry
from engines.api import EngineError, FaultKind
from runtime import metrics
from runtime.config.report import did_you_mean
from runtime.host.drain import Traffic
from runtime.host.engine_thread import EngineThread
from runtime.host.wire import error_object

JSON = "application/json"
STATUS = {"engine_failed": 503, "fault_impossible": 409}
NO_PAGES = "this engine keeps nothing in pages"
NOT_DEV = "this host wasn't started by `bulkhead dev`: no fault is planted in it"


class Control:
    """A host's control routes. `faults` names its engine if faults may be planted there."""

    def __init__(self, model: str, thread: EngineThread, faults: str = "") -> None:
        self.draining = False
        self.traffic = Traffic()
        self._model = model
        self._thread = thread
        self._faults = faults

    def routes(self) -> list[Route]:
        """All there are."""
        return [
            Route("/health", self._health),
            Route("/stats", self._stats),
            Route("/metrics", self._metrics),
            Route("/pages", self._pages),
            Route("/drain", self._drain, methods=["POST"]),
            Route("/faults", self._fault_kinds),
            Route("/faults/{kind}", self._plant, methods=["POST"]),
        ]

    async def _health(self, _: Request) -> Response:
        """200 while the engine can answer."""
        if self._thread.failed.is_set():
            return JSONResponse({"state": "failed"}, 503)
        return JSONResponse(
            {
                "state": "draining" if self.draining else "ready",
                "retirement": self._thread.retirement,
                "integrity_aborts": self._thread.integrity_aborts,
                "in_flight": self.traffic.running,
                "waiting": self._thread.waiting,
                "idle_s": round(self.traffic.idle_s, 3),
            }
        )

    async def _stats(self, _: Request) -> Response:
        return JSONResponse(dataclasses.asdict(await self._thread.stats()))

    async def _metrics(self, _: Request) -> Response:
        one = metrics.Host({"model": self._model}, await self._thread.stats())
        return PlainTextResponse(metrics.text([one]), media_type=metrics.CONTENT_TYPE)

    async def _pages(self, _: Request) -> Response:
        try:
            found = await self._thread.pages()
        except EngineError as fault:
            return _refused(fault.code, str(fault), 503)
        if found is None:
            return _refused("no_pages", NO_PAGES, 404)
        return Response(msgspec.json.encode(found), media_type=JSON)

    async def _drain(self, _: Request) -> Response:
        self.draining = True
        return JSONResponse({"in_flight": self._thread.in_flight})

    async def _fault_kinds(self, _: Request) -> Response:
        if not self._faults:
            return _refused("not_development", NOT_DEV, 403)
        kinds = registry.fault_kinds(self._faults)
        return JSONResponse([dataclasses.asdict(kind) for kind in kinds])

    async def _plant(self, request: Request) -> Response:
        """Between two steps, in the engine's own thread."""
        if not (engine := self._faults):
            return _refused("not_development", NOT_DEV, 403)
        kind, known = request.path_params["kind"], registry.fault_kinds(engine)
        if kind not in [one.kind for one in known]:
            return _refused("no_such_fault", _unknown(kind[:64], known, engine), 404)
        try:
            done = await self._thread.plant(lambda live: registry.plant_fault(engine, live, kind))
        except EngineError as fault:
            return _refused(fault.code, str(fault), STATUS.get(fault.code, 500))
        return JSONResponse({"kind": kind, "done": done})


def _unknown(kind: str, known: Sequence[FaultKind], engine: str) -> str:
    names = [one.kind for one in known]
    if hint := did_you_mean(kind, names):
        return f"unknown fault {kind!r}{hint}"
    told = ", ".join(names) or f"none for the engine {engine}"
    return f"unknown fault {kind!r}; known: {told}"


def _refused(code: str, message: str, status: int) -> Response:
    return JSONResponse(error_object(code, message), status)
