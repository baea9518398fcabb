"""Limits of tenants, projects and keys, over the admin API."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.admin.changes.changing import Body, Changing, body_of, decoded
from gateway.admin.problems import BadBody
from gateway.clock import SYSTEM_CLOCK
from gateway.limits import setting
from gateway.store.limit_rules import Rule, Scope, clear_rule, set_rule
from gateway.store.sql import Connection
from runtime.config.models import ModelSettings, names_of


class Of(Body, frozen=True):
    """Whose: the tenant's, or of one of its projects or keys; at all models or at one."""

    project: str | None = None
    key: str | None = None
    model: str | None = None


class NewLimits(Of, frozen=True):
    """The numbers to set; what is left out stays."""

    rpm: int | None = None
    tpm: int | None = None
    concurrent: int | None = None


class Limits:
    """Their routes."""

    def __init__(self, changing: Changing) -> None:
        self._changing = changing

    def routes(self) -> list[Route]:
        """All there are."""
        path = "/admin/v1/tenants/{tenant}/limits"
        return [
            Route(path, self.index, methods=["GET"]),
            Route(path, self.set, methods=["PUT"]),
            Route(path, self.clear, methods=["DELETE"]),
        ]

    async def index(self, request: Request) -> Response:
        """What was set for a tenant, its projects and its keys; not what the config says."""
        name = request.path_params["tenant"]
        found = await self._changing.read(lambda db: setting.listed(db, name))
        data = [_view(scope, rule) for scope, rule in found]
        return JSONResponse({"object": "list", "data": data, "has_more": False})

    async def set(self, request: Request) -> Response:
        """Set numbers, in force within a second."""
        tenant, body = request.path_params["tenant"], await body_of(request)
        new = decoded(body, NewLimits)
        rule = Rule(new.rpm, new.tpm, new.concurrent)
        if rule == Rule():
            raise BadBody("give at least one of rpm, tpm and concurrent")

        def work(db: Connection, _: object) -> dict[str, Any]:
            scope = self._scope(db, tenant, new)
            return _view(scope, set_rule(db, scope, rule, SYSTEM_CLOCK.now_us()))

        return await self._changing.change(request, body, work)

    async def clear(self, request: Request) -> Response:
        """Forget what was set there: the configuration's numbers hold again."""
        tenant, body = request.path_params["tenant"], await body_of(request)
        of = decoded(body, Of)

        def work(db: Connection, _: object) -> None:
            clear_rule(db, self._scope(db, tenant, of))

        return await self._changing.change(request, body, work)

    def _scope(self, db: Connection, tenant: str, of: Of) -> Scope:
        if of.project is not None and of.key is not None:
            raise BadBody("project and key: a limit is of one of them")
        model = known_model(self._changing.settings().file.models, of.model)
        return setting.scope_of(db, tenant, project=of.project, key_id=of.key, model=model)


def known_model(models: tuple[ModelSettings, ...], name: str | None) -> str:
    """The id of a model by any of its names, "" for none. Raises BadBody."""
    if name is None:
        return ""
    known = {alias: model.id for model in models for _, alias in names_of(model)}
    if name not in known:
        raise BadBody(f"model: there is no model {name[:64]!r}; there are {', '.join(known)}")
    return known[name]


def _view(scope: Scope, rule: Rule) -> dict[str, Any]:
    return {
        "object": "limit",
        "scope": {"kind": scope.kind, "id": scope.id},
        "model": scope.model or None,
        **asdict(rule),
    }
