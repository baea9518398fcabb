"""GET /v1/usage/export and its manifest: the rows behind a tenant's bill, and what they add up to.

An answer whose end doesn't come has no end in HTTP either: its last chunk is missing, which clients
report. The manifest of the same period, bound and form says what all of it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from gateway.asgi import Call
from gateway.caller import identify, project_seen
from gateway.env import Env
from gateway.errors import BadRequest, Unsupported
from gateway.identity.scopes import USAGE_READ
from gateway.query import query_of
from gateway.store.reader import read
from gateway.usage import manifest as manifests
from gateway.usage.export import FORMATS, GRANULARITIES, VERSIONS, Export, Form
from gateway.usage.parquet import NoParquet
from gateway.usage.selection import NoSuchBound, Selection, bound_of, checked_bound
from gateway.usage_period import period_of

KNOWN = {"start_time", "end_time", "format", "focus_version", "granularity", "bound"}
CONTENT_TYPES = {
    "csv": b"text/csv; charset=utf-8",
    "jsonl": b"application/jsonl",
    "focus": b"text/csv; charset=utf-8",
    "parquet": b"application/vnd.apache.parquet",
}
BOUND = b"x-bulkhead-seq-bound"
MAX_SEQ = 2**63 - 1

T = TypeVar("T", bound=str)


async def usage_export(env: Env, call: Call) -> None:
    """Records or charges, streamed. The header x-bulkhead-seq-bound says up to which record."""
    export = await _export(env, call)
    content_type = CONTENT_TYPES[export.form.format]
    async with call.watched():
        await call.stream(200, content_type, _in_thread(iter(export), env.report_threads))


async def manifest(env: Env, call: Call) -> None:
    """The signed manifest of that very export, whose file is called by its form alone."""
    export = await _export(env, call)
    sha256, size = hashlib.sha256(), 0
    async with call.watched():
        async for chunk in _in_thread(iter(export), env.report_threads):
            sha256.update(chunk)
            size += len(chunk)
    name = f"usage.{export.form.suffix}"
    entry = manifests.entry_of(name, size, sha256.hexdigest(), export)
    contents = manifests.contents_of(export.selection, export.form, [entry])
    await call.send_json(200, manifests.sign(contents, env.manifest_key))


async def _export(env: Env, call: Call) -> Export:
    principal = await identify(env, call, USAGE_READ)
    query = query_of(call, KNOWN)
    start_us, end_us = period_of(query, env.clock.now_us())
    form = Form(
        _choice(query, "format", FORMATS),
        _choice(query, "focus_version", VERSIONS),
        _choice(query, "granularity", GRANULARITIES),
    )
    asked = _bound(query)
    if asked is None:
        find = partial(bound_of, start_us=start_us, end_us=end_us)
    else:
        find = partial(checked_bound, bound=asked)
    try:
        bound = await to_thread.run_sync(read, env.database, find, limiter=env.report_threads)
    except NoSuchBound as fault:
        raise BadRequest(f"bound: {fault}", param="bound") from None
    call.extra[BOUND] = b"%d" % bound
    whose = principal.tenant_id, project_seen(principal)
    selection = Selection(start_us, end_us, bound, *whose)
    try:
        return Export(env.database, selection, form, env.bill_names)
    except NoParquet:
        raise Unsupported(
            "format: this gateway has no Parquet; its operator can install the extra",
            param="format",
        ) from None


def _choice(query: dict[str, str], name: str, choices: tuple[T, ...]) -> T:
    """A parameter that is one of a few; the first of them if it wasn't sent."""
    value = query.get(name, choices[0])
    if value not in choices:
        raise BadRequest(f"{name}: expected one of {', '.join(choices)}", param=name)
    return value


def _bound(query: dict[str, str]) -> int | None:
    text = query.get("bound")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= MAX_SEQ):
        raise BadRequest("bound: expected a whole number, as a manifest tells it", param="bound")
    return int(text)


async def _in_thread(chunks: Iterator[bytes], limiter: CapacityLimiter) -> AsyncIterator[bytes]:
    """A blocking iterator, read without blocking the loop."""
    while (chunk := await to_thread.run_sync(next, chunks, None, limiter=limiter)) is not None:
        if chunk:
            yield chunk
