"""The audit log, read."""

from __future__ import annotations

import re
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.admin.changes.changing import Changing
from gateway.admin.pages import limit_of, told
from gateway.admin.problems import BadParameter
from gateway.admin.query import single
from gateway.admin.reads import moment
from gateway.identity.tenants import tenant_id_of
from gateway.store import audit
from gateway.store.sql import Connection

ENTRY = r"au_[0-9A-Z]{1,32}"


class AuditLog:
    """Its route."""

    def __init__(self, changing: Changing) -> None:
        self._changing = changing

    def routes(self) -> list[Route]:
        """The one there is."""
        return [Route("/admin/v1/audit", self.index, methods=["GET"])]

    async def index(self, request: Request) -> Response:
        """Who changed what, the newest first."""
        given = single(request.query_params.multi_items(), ("after", "limit", "tenant"))
        limit, after = limit_of(given.get("limit", "20")), given.get("after", audit.NEWEST)
        if "after" in given and not re.fullmatch(ENTRY, after):
            raise BadParameter(f"after: expected an entry's id, found {after[:64]!r}")

        def query(db: Connection) -> list[dict[str, Any]]:
            name = given.get("tenant")
            tenant_id = tenant_id_of(db, name) if name else ""
            return audit.page(db, limit + 1, before=after, tenant_id=tenant_id)

        found = await self._changing.read(query)
        entries = [{"object": "audit_entry", **one, "at": moment(one["at"])} for one in found]
        return JSONResponse(told(entries[:limit], has_more=len(entries) > limit))
