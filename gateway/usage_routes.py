"""GET /v1/usage and /v1/usage/export: what the caller's tenant used, and the rows behind it."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import cast

from anyio import CapacityLimiter, to_thread

from gateway.asgi import Call, encode
from gateway.caller import identify
from gateway.env import Env
from gateway.errors import BadRequest
from gateway.query import query_of
from gateway.usage.page import BucketWidth, usage_page
from gateway.usage.records import Format, export

US = 1_000_000
DAY_S = 86400
MAX_TIME_S = 253_402_300_799  # the year 9999
CONTENT_TYPES = {"csv": b"text/csv; charset=utf-8", "jsonl": b"application/jsonl"}


async def usage(env: Env, call: Call) -> None:
    """Usage by bucket and model. `start_time`, `end_time`, `bucket_width` as OpenAI's."""
    principal = await identify(env, call)
    query = query_of(call, {"start_time", "end_time", "bucket_width"})
    start, end = _period(query, env.clock.now_us())
    width = query.get("bucket_width", "1d")
    if width not in ("1h", "1d"):
        raise BadRequest("bucket_width: expected 1h or 1d", param="bucket_width")
    query_page = partial(usage_page, env.database, principal.tenant_id, start, end)
    async with call.watched():
        page = await to_thread.run_sync(
            query_page, cast("BucketWidth", width), limiter=env.report_threads
        )
    await call.send_json(200, encode(page))


async def usage_export(env: Env, call: Call) -> None:
    """One row a request, as `format=csv` or `jsonl`, streamed."""
    principal = await identify(env, call)
    query = query_of(call, {"start_time", "end_time", "format"})
    start, end = _period(query, env.clock.now_us())
    fmt = query.get("format", "csv")
    if fmt not in CONTENT_TYPES:
        raise BadRequest("format: expected csv or jsonl", param="format")
    rows = export(env.database, principal.tenant_id, start, end, cast("Format", fmt))
    async with call.watched():
        await call.stream(200, CONTENT_TYPES[fmt], _in_thread(rows, env.report_threads))


async def _in_thread(rows: Iterator[bytes], limiter: CapacityLimiter) -> AsyncIterator[bytes]:
    """A blocking iterator, read without blocking the loop."""
    while (chunk := await to_thread.run_sync(next, rows, None, limiter=limiter)) is not None:
        yield chunk


def _period(query: dict[str, str], now_us: int) -> tuple[int, int]:
    """[start, end) in µs; by default the last 30 days, up to now."""
    now_s = now_us // US + 1
    start = _time(query, "start_time", now_s - 30 * DAY_S)
    end = _time(query, "end_time", now_s)
    if start >= end:
        raise BadRequest("start_time: must be before end_time", param="start_time")
    return start * US, end * US


def _time(query: dict[str, str], name: str, default: int) -> int:
    """A time in unix seconds, or in RFC 3339 with its zone."""
    text = query.get(name)
    if text is None:
        return default
    if text.isascii() and text.isdigit() and int(text[:15]) <= MAX_TIME_S and len(text) <= 15:
        return int(text)
    try:
        when = datetime.datetime.fromisoformat(text)
    except ValueError:
        when = None
    if when is None or when.tzinfo is None:
        raise BadRequest(
            f"{name}: expected unix seconds, or a time like 2026-11-01T00:00:00Z", param=name
        )
    return int(when.timestamp())
