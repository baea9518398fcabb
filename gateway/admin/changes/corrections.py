"""Corrections of records, over the admin API: a closed record never changes, another one does."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.admin.changes.changing import Body, Changing, body_of, decoded
from gateway.admin.reads import moment
from gateway.clock import SYSTEM_CLOCK
from gateway.money.corrections import VOID, Correction, Usage, correct


class NewCorrection(Body, frozen=True):
    """What the record should have counted; `void`: nothing at all."""

    reason: str
    void: bool = False
    input_tokens: int | None = None
    cached_input_tokens: int | None = None
    output_tokens: int | None = None


class Corrections:
    """Their route."""

    def __init__(self, changing: Changing) -> None:
        self._changing = changing

    def routes(self) -> list[Route]:
        """The one there is."""
        path = "/admin/v1/requests/{record}/corrections"
        return [Route(path, self.create, methods=["POST"])]

    async def create(self, request: Request) -> Response:
        """Make a record what it should have been."""
        record, body = request.path_params["record"], await body_of(request)
        new = decoded(body, NewCorrection)
        counts = Usage(new.input_tokens, new.cached_input_tokens, new.output_tokens)
        should_be = VOID if new.void else counts
        return await self._changing.change(
            request,
            body,
            lambda db, _: _view(correct(db, record, should_be, new.reason, SYSTEM_CLOCK.now_us())),
            201,
        )


def _view(found: Correction) -> dict[str, Any]:
    return {
        "object": "correction",
        "id": found.id,
        "corrects": found.corrects,
        "tenant_id": found.tenant_id,
        "amount": {"value": found.amount, "currency": found.currency},
        "charge_at": moment(found.charge_at),
        "is_late": found.is_late,
    }
