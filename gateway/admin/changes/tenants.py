"""Tenants and their projects, over the admin API."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.admin.changes.changing import Body, Changing, body_of, decoded
from gateway.admin.pages import page_of
from gateway.admin.reads import moment
from gateway.identity import projects as project_rows, tenants as rows
from gateway.identity.projects import Project
from gateway.identity.tenants import Tenant
from gateway.store.sql import Connection


class NewTenant(Body, frozen=True):
    """A tenant to make."""

    name: str
    timezone: str | None = None
    weight: int | None = None


class TenantChange(Body, frozen=True):
    """What is to be different; what is left out stays."""

    timezone: str | None = None
    weight: int | None = None
    disabled: bool | None = None


class NewProject(Body, frozen=True):
    """A project to make."""

    name: str


class Tenants:
    """Their routes. `GET /admin/v1/tenants` is with the other reads."""

    def __init__(self, changing: Changing) -> None:
        self._changing = changing

    def routes(self) -> list[Route]:
        """All there are."""
        one, projects = "/admin/v1/tenants/{tenant}", "/admin/v1/tenants/{tenant}/projects"
        return [
            Route("/admin/v1/tenants", self.create, methods=["POST"]),
            Route(one, self.show, methods=["GET"]),
            Route(one, self.update, methods=["PATCH"]),
            Route(projects, self.projects, methods=["GET"]),
            Route(projects, self.create_project, methods=["POST"]),
            Route(f"{projects}/{{project}}", self.archive_project, methods=["DELETE"]),
        ]

    async def create(self, request: Request) -> Response:
        """Add one."""
        body = await body_of(request)
        new = decoded(body, NewTenant)

        def work(db: Connection, _: object) -> dict[str, Any]:
            rows.create_tenant(db, new.name)
            return tenant_view(_set(db, new.name, new.timezone, new.weight))

        return await self._changing.change(request, body, work, 201)

    async def show(self, request: Request) -> Response:
        """One, by its name."""
        name = request.path_params["tenant"]
        found = await self._changing.read(lambda db: rows.tenant_of(db, name))
        return JSONResponse(tenant_view(found))

    async def update(self, request: Request) -> Response:
        """Change its time zone or weight, or refuse its keys for a while."""
        name, body = request.path_params["tenant"], await body_of(request)
        change = decoded(body, TenantChange)

        def work(db: Connection, _: object) -> dict[str, Any]:
            _set(db, name, change.timezone, change.weight)
            if change.disabled is not None:
                (rows.disable_tenant if change.disabled else rows.enable_tenant)(db, name)
            return tenant_view(rows.tenant_of(db, name))

        return await self._changing.change(request, body, work)

    async def projects(self, request: Request) -> Response:
        """A tenant's projects, archived ones too."""
        name = request.path_params["tenant"]
        found = await self._changing.read(lambda db: project_rows.list_projects(db, name))
        listed = [project_view(one) for one in found]
        return JSONResponse(page_of(listed, request.query_params.multi_items()))

    async def create_project(self, request: Request) -> Response:
        """Add one to a tenant."""
        name, body = request.path_params["tenant"], await body_of(request)
        new = decoded(body, NewProject)
        return await self._changing.change(
            request,
            body,
            lambda db, _: project_view(project_rows.create_project(db, name, new.name)),
            201,
        )

    async def archive_project(self, request: Request) -> Response:
        """Refuse its keys from now on."""
        tenant, project = request.path_params["tenant"], request.path_params["project"]
        body = await body_of(request)
        return await self._changing.change(
            request,
            body,
            lambda db, _: project_view(project_rows.archive_project(db, tenant, project)),
        )


def _set(db: Connection, name: str, timezone: str | None, weight: int | None) -> Tenant:
    if timezone is None and weight is None:
        return rows.tenant_of(db, name)
    return rows.set_tenant(db, name, timezone=timezone, weight=weight)


def tenant_view(tenant: Tenant) -> dict[str, Any]:
    """As it is told."""
    return {
        "object": "tenant",
        "id": tenant.id,
        "name": tenant.name,
        "demo": tenant.is_demo,
        "timezone": tenant.timezone,
        "weight": tenant.weight,
        "disabled_at": moment(tenant.disabled_at),
    }


def project_view(project: Project) -> dict[str, Any]:
    """As it is told."""
    return {
        "object": "project",
        "id": project.id,
        "tenant_id": project.tenant_id,
        "name": project.name,
        "created_at": moment(project.created_at),
        "archived_at": moment(project.archived_at),
    }
