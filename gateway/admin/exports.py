"""The operator's usage exports: of all tenants, or of one by its name."""

from __future__ import annotations

from collections.abc import Callable

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gateway.admin.problems import BadParameter, StoreUnreachable
from gateway.admin.query import single
from gateway.clock import SYSTEM_CLOCK
from gateway.errors import BadRequest
from gateway.export_query import CONTENT_TYPES, KNOWN, SEQ_BOUND, export_of
from gateway.identity.tenants import NoSuchTenant, tenant_id_of
from gateway.root import keyring_of
from gateway.store.errors import StoreUnavailable
from gateway.store.reader import read
from gateway.stores import database_of
from gateway.usage.export import Export
from gateway.usage.manifest import Digest, manifest_of, signing_key
from gateway.usage.names import names_of
from runtime.settings import Settings


class Exports:
    """What their routes need. `settings` tells those that are in force now."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self._settings = settings

    async def usage(self, request: Request) -> Response:
        """Records or charges, streamed; one that breaks has no end in HTTP."""
        export = await to_thread.run_sync(self._export, request)
        return StreamingResponse(
            iter(export),
            media_type=CONTENT_TYPES[export.form.format],
            headers={SEQ_BOUND: str(export.selection.bound)},
        )

    async def manifest(self, request: Request) -> Response:
        """What that export holds, signed."""
        bound, signed = await to_thread.run_sync(self._manifest, request)
        headers = {SEQ_BOUND: str(bound)}
        return Response(signed, media_type="application/json", headers=headers)

    def _manifest(self, request: Request) -> tuple[int, bytes]:
        settings = self._settings()
        key = signing_key(keyring_of(settings))
        export, digest = self._export(request), Digest()
        for chunk in export:
            digest.add(chunk)
        return export.selection.bound, manifest_of(export, digest, key)

    def _export(self, request: Request) -> Export:
        query = single(request.query_params.multi_items(), (*KNOWN, "tenant"))
        settings = self._settings()
        database, name = database_of(settings), query.pop("tenant", None)
        try:
            tenant_id = name and read(database, lambda db: tenant_id_of(db, name))
            whose = tenant_id, None
            names, now_us = names_of(settings.file), SYSTEM_CLOCK.now_us()
            return export_of(query, database, whose, names, now_us)
        except StoreUnavailable as fault:
            raise StoreUnreachable(str(fault)) from fault
        except NoSuchTenant as fault:
            raise BadParameter(f"tenant: {fault}") from None
        except BadRequest as fault:
            raise BadParameter(fault.message) from None
