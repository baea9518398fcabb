"""Budgets over the admin API."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.admin.changes.changing import Body, Changing, body_of, decoded
from gateway.admin.changes.limits import known_model
from gateway.admin.pages import page_of
from gateway.admin.problems import BadBody
from gateway.budgets import budgets as rows
from gateway.budgets.views import view
from gateway.budgets.windows import Kind
from gateway.clock import SYSTEM_CLOCK
from gateway.identity.tenants import tenant_id_of
from gateway.prices import parse_nano
from gateway.store.sql import Connection


class NewBudget(Body, frozen=True):
    """A budget to make. `limit`: a decimal text, such as "100" or "12.50"."""

    limit: str
    period: Kind = "monthly"
    currency: str = "USD"
    project: str | None = None
    key: str | None = None
    model: str | None = None
    alerts: tuple[int, ...] = rows.DEFAULT_ALERTS


class NewLimit(Body, frozen=True):
    """What may be spent from now on."""

    limit: str


class Budgets:
    """Their routes."""

    def __init__(self, changing: Changing) -> None:
        self._changing = changing

    def routes(self) -> list[Route]:
        """All there are."""
        of_tenant, one = "/admin/v1/tenants/{tenant}/budgets", "/admin/v1/budgets/{budget}"
        return [
            Route(of_tenant, self.index, methods=["GET"]),
            Route(of_tenant, self.create, methods=["POST"]),
            Route(one, self.show, methods=["GET"]),
            Route(one, self.update, methods=["PATCH"]),
            Route(one, self.archive, methods=["DELETE"]),
        ]

    async def index(self, request: Request) -> Response:
        """A tenant's, those of its projects and keys too, each in the window that runs now."""
        name, now_us = request.path_params["tenant"], SYSTEM_CLOCK.now_us()

        def query(db: Connection) -> list[dict[str, Any]]:
            found = rows.listed(db, now_us, tenant_id=tenant_id_of(db, name), archived=True)
            return [view(account) for account in found]

        listed = await self._changing.read(query)
        return JSONResponse(page_of(listed, request.query_params.multi_items()))

    async def show(self, request: Request) -> Response:
        """One, by its id."""
        id_, now_us = request.path_params["budget"], SYSTEM_CLOCK.now_us()
        found = await self._changing.read(lambda db: rows.show(db, id_, now_us))
        return JSONResponse(view(found))

    async def create(self, request: Request) -> Response:
        """Add one, in force within a second."""
        tenant, body = request.path_params["tenant"], await body_of(request)
        new = decoded(body, NewBudget)
        limit_nano = _nano(new.limit)
        if new.project is not None and new.key is not None:
            raise BadBody("project and key: a budget is of one of them")
        model_id = known_model(self._changing.settings().file.models, new.model)

        def work(db: Connection, _: object) -> dict[str, Any]:
            tenant_id = tenant_id_of(db, tenant)
            kind, scope_id = rows.scope_of(db, tenant_id, new.project, new.key)
            plan = rows.Plan(
                tenant_id=tenant_id,
                scope_kind=kind,
                scope_id=scope_id,
                period=new.period,
                currency=new.currency,
                limit_nano=limit_nano,
                model_id=model_id,
                alerts=new.alerts,
            )
            return view(rows.create(db, plan, SYSTEM_CLOCK.now_us()))

        return await self._changing.change(request, body, work, 201)

    async def update(self, request: Request) -> Response:
        """Change its limit. What was spent stays spent."""
        id_, body = request.path_params["budget"], await body_of(request)
        limit_nano = _nano(decoded(body, NewLimit).limit)
        return await self._changing.change(
            request,
            body,
            lambda db, _: view(rows.set_limit(db, id_, limit_nano, SYSTEM_CLOCK.now_us())),
        )

    async def archive(self, request: Request) -> Response:
        """End it, for good."""
        id_, body = request.path_params["budget"], await body_of(request)
        return await self._changing.change(
            request, body, lambda db, _: view(rows.archive(db, id_, SYSTEM_CLOCK.now_us()))
        )


def _nano(text: str) -> int:
    try:
        return parse_nano(text)
    except ValueError as fault:
        raise BadBody(f"limit: {fault}") from None
