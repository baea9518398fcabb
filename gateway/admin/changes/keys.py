"""API keys over the admin API. A secret is in one answer, that of the call that made it."""

from __future__ import annotations

import datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.admin.changes.changing import Body, Changing, body_of, decoded
from gateway.admin.pages import page_of
from gateway.admin.problems import BadBody
from gateway.admin.reads import moment
from gateway.identity import api_keys as rows, scopes
from gateway.identity.api_keys import Key, KeyTerms
from gateway.identity.keys import PEPPER_LABEL
from gateway.store.sql import Connection
from runtime.keyring import Keyring

US = 1_000_000
MAX_GRACE_S = 90 * 86_400
EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)


class NewKey(Body, frozen=True):
    """A key to make."""

    name: str = "default"
    scopes: tuple[str, ...] = tuple(sorted(scopes.DEFAULT))
    models: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    expires_at: datetime.datetime | None = None
    project: str | None = None


class Rotation(Body, frozen=True):
    """For how long the old secret works beside the new one."""

    grace_s: int = 0


class Keys:
    """Their routes."""

    def __init__(self, changing: Changing) -> None:
        self._changing = changing

    def routes(self) -> list[Route]:
        """All there are."""
        of_tenant, one = "/admin/v1/tenants/{tenant}/keys", "/admin/v1/keys/{key}"
        return [
            Route(of_tenant, self.index, methods=["GET"]),
            Route(of_tenant, self.create, methods=["POST"]),
            Route(one, self.show, methods=["GET"]),
            Route(one, self.revoke, methods=["DELETE"]),
            Route(f"{one}/rotate", self.rotate, methods=["POST"]),
        ]

    async def index(self, request: Request) -> Response:
        """A tenant's keys, revoked ones too."""
        name = request.path_params["tenant"]
        found = await self._changing.read(lambda db: rows.list_keys(db, name))
        listed = [key_view(key) for key in found]
        return JSONResponse(page_of(listed, request.query_params.multi_items()))

    async def show(self, request: Request) -> Response:
        """One, by its id."""
        id_ = request.path_params["key"]
        return JSONResponse(key_view(await self._changing.read(lambda db: rows.key_of(db, id_))))

    async def create(self, request: Request) -> Response:
        """Add one to a tenant; its secret is told now and never again."""
        tenant, body = request.path_params["tenant"], await body_of(request)
        new = decoded(body, NewKey)
        expires_at = _us(new.expires_at)
        terms = KeyTerms(new.scopes, new.models, new.networks, expires_at, new.project)

        def work(db: Connection, root: Keyring) -> dict[str, Any]:
            key, secret = rows.create_key(db, tenant, new.name, root.derive(PEPPER_LABEL), terms)
            return key_view(key) | {"secret": secret}

        return await self._changing.change(request, body, work, 201)

    async def rotate(self, request: Request) -> Response:
        """Give one a new secret."""
        id_, body = request.path_params["key"], await body_of(request)
        grace_s = decoded(body, Rotation).grace_s
        if not 0 <= grace_s <= MAX_GRACE_S:
            raise BadBody(f"grace_s: expected 0 to {MAX_GRACE_S}, found {grace_s}")

        def work(db: Connection, root: Keyring) -> dict[str, Any]:
            key, secret = rows.rotate_key(db, id_, root.derive(PEPPER_LABEL), grace_s * US)
            return key_view(key) | {"secret": secret}

        return await self._changing.change(request, body, work)

    async def revoke(self, request: Request) -> Response:
        """End one, on all gateways within a second."""
        id_, body = request.path_params["key"], await body_of(request)
        return await self._changing.change(
            request, body, lambda db, _: key_view(rows.revoke_key(db, id_))
        )


def key_view(key: Key) -> dict[str, Any]:
    """As it is told: all but its secret."""
    return {
        "object": "key",
        "id": key.id,
        "tenant_id": key.tenant_id,
        "name": key.name,
        "hint": key.hint,
        "project": key.project,
        "scopes": sorted(key.scopes),
        "models": key.models,
        "networks": key.networks,
        "created_at": moment(key.created_at),
        "expires_at": moment(key.expires_at),
        "revoked_at": moment(key.revoked_at),
        "rotated_at": moment(key.rotated_at),
        "grace_until": moment(key.grace_until),
        "last_used_at": moment(key.last_used_at),
        "last_used_from": key.last_used_from,
    }


def _us(when: datetime.datetime | None) -> int | None:
    if when is None:
        return None
    if when.tzinfo is None:
        raise BadBody('expires_at: expected a time with its zone, such as "2027-01-31T00:00:00Z"')
    return (when - EPOCH) // datetime.timedelta(microseconds=1)
