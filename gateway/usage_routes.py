"""GET /v1/usage: what the caller's tenant used."""

from __future__ import annotations

from functools import partial
from typing import cast

from anyio import to_thread

from gateway.asgi import Call, encode
from gateway.caller import identify
from gateway.env import Env
from gateway.errors import BadRequest
from gateway.identity.scopes import USAGE_READ
from gateway.query import query_of
from gateway.usage.page import BucketWidth, usage_page
from gateway.usage_period import period_of


async def usage(env: Env, call: Call) -> None:
    """Usage by bucket and model. `start_time`, `end_time`, `bucket_width` as OpenAI's."""
    principal = await identify(env, call, USAGE_READ)
    query = query_of(call, {"start_time", "end_time", "bucket_width"})
    start, end = period_of(query, env.clock.now_us())
    width = query.get("bucket_width", "1d")
    if width not in ("1h", "1d"):
        raise BadRequest("bucket_width: expected 1h or 1d", param="bucket_width")
    query_page = partial(usage_page, env.database, principal.tenant_id, start, end)
    async with call.watched():
        page = await to_thread.run_sync(
            query_page, cast("BucketWidth", width), limiter=env.report_threads
        )
    await call.send_json(200, encode(page))
