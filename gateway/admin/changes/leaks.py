"""Keys that were found in public, reported in the form of GitHub's secret scanning.

Each of ours is revoked at once; the answer says of each report whether it was one. Reports come
from the operator's own scanner, with the admin key: GitHub itself takes one partner for a whole
service.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.admin.changes.changing import Changing, body_of
from gateway.admin.problems import BadBody
from gateway.identity import api_keys as rows, keys
from gateway.identity.keys import PEPPER_LABEL
from gateway.store import audit
from gateway.store.sql import Connection
from runtime.keyring import Keyring

MAX_REPORTS = 1000
TYPE = "bulkhead_api_key"


class Report(msgspec.Struct, frozen=True):
    """A secret, and where it was found. Other members are passed over."""

    token: str
    url: str = ""
    source: str = ""


class Leaks:
    """Their route."""

    def __init__(self, changing: Changing) -> None:
        self._changing = changing

    def routes(self) -> list[Route]:
        """The one there is."""
        return [Route("/admin/v1/leaks", self.report, methods=["POST"])]

    async def report(self, request: Request) -> Response:
        """Revoke what was found."""
        body = await body_of(request)
        try:
            reports = msgspec.json.decode(body, type=list[Report])
        except (msgspec.MsgspecError, UnicodeDecodeError) as fault:
            raise BadBody(f"the body: {fault}") from None
        if len(reports) > MAX_REPORTS:
            raise BadBody(f"the body: {MAX_REPORTS} reports at most")

        def work(db: Connection, root: Keyring) -> list[dict[str, Any]]:
            pepper = root.derive(PEPPER_LABEL)
            return [_revoked(db, pepper, report) for report in reports]

        return await self._changing.change(request, body, work)


def _revoked(db: Connection, pepper: bytes, report: Report) -> dict[str, Any]:
    digest = keys.digest(pepper, report.token)
    row = None
    if keys.well_formed(report.token):
        row = db.execute(_OF_DIGEST, {"digest": digest}).fetchone()
    label = "false_positive"
    if row is not None:
        label = "true_positive"
        key = rows.revoke_key(db, row[0])
        where = {"url": report.url[:512], "source": report.source[:64]}
        audit.note(db, "key.leaked", "key", key.id, key.tenant_id, **where)
    return {"token_hash": digest.hex(), "token_type": TYPE, "label": label}


_OF_DIGEST = """
SELECT id FROM api_key WHERE digest = :digest
UNION SELECT key_id FROM api_key_past_secret WHERE digest = :digest
"""
