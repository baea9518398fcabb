"""GET /v1/usage/export and its manifest: the rows behind a tenant's bill, and what they add up to.

An answer whose end doesn't come has no end in HTTP either: its last chunk is missing, which clients
report. The manifest of the same period, bound and form says what all of it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial

from anyio import CapacityLimiter, to_thread

from gateway.asgi import Call
from gateway.caller import identify, project_seen
from gateway.env import Env
from gateway.export_query import CONTENT_TYPES, KNOWN, SEQ_BOUND, export_of
from gateway.identity.scopes import USAGE_READ
from gateway.query import query_of
from gateway.usage.export import Export
from gateway.usage.manifest import Digest, manifest_of


async def usage_export(env: Env, call: Call) -> None:
    """Records or charges, streamed. The header x-bulkhead-seq-bound says up to which record."""
    export = await _export(env, call)
    content_type = CONTENT_TYPES[export.form.format].encode()
    async with call.watched():
        await call.stream(200, content_type, _in_thread(iter(export), env.report_threads))


async def manifest(env: Env, call: Call) -> None:
    """The signed manifest of that very export, whose file is called by its form alone."""
    export = await _export(env, call)
    digest = Digest()
    async with call.watched():
        async for chunk in _in_thread(iter(export), env.report_threads):
            digest.add(chunk)
    await call.send_json(200, manifest_of(export, digest, env.manifest_key))


async def _export(env: Env, call: Call) -> Export:
    principal = await identify(env, call, USAGE_READ)
    query = query_of(call, KNOWN)
    whose = principal.tenant_id, project_seen(principal)
    find = partial(export_of, query, env.database, whose, env.bill_names, env.clock.now_us())
    export = await to_thread.run_sync(find, limiter=env.report_threads)
    call.extra[SEQ_BOUND.encode()] = b"%d" % export.selection.bound
    return export


async def _in_thread(chunks: Iterator[bytes], limiter: CapacityLimiter) -> AsyncIterator[bytes]:
    """A blocking iterator, read without blocking the loop."""
    while (chunk := await to_thread.run_sync(next, chunks, None, limiter=limiter)) is not None:
        if chunk:
            yield chunk
