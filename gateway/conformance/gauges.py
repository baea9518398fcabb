"""How many requests a server has in hand, as far as it tells anybody."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

import msgspec

from gateway.conformance.backend import MAX_BYTES, Backend
from gateway.relay.transport import Broken, ConnectFailed
from gateway.schema import NOT_JSON

# Running and waiting, as each kind's Prometheus page calls them.
METRICS = re.compile(
    r"^(?:vllm:num_requests_(?:running|waiting)|sglang:num_(?:running|queue)_reqs"
    r"|llamacpp:requests_(?:processing|deferred))(?:\{[^}]*\})? ([0-9.e+]+)$",
    re.M,
)
Gauge = Callable[[], Awaitable[int | None]]


async def gauge_of(backend: Backend) -> Gauge | None:
    """What tells how many there are; None if nothing does."""
    base = backend.url.removesuffix("/v1")

    async def by_metrics() -> int | None:
        page = await _page(backend, f"{base}/metrics")
        found = METRICS.findall(page.decode("utf-8", "replace")) if page else []
        return round(sum(map(float, found))) if found else None

    async def by_slots() -> int | None:
        page = await _page(backend, f"{base}/slots")
        try:
            slots = msgspec.json.decode(page or b"")
        except NOT_JSON:
            return None
        if not isinstance(slots, list):
            return None
        return sum(bool(isinstance(slot, dict) and slot.get("is_processing")) for slot in slots)

    for gauge in (by_metrics, by_slots):
        if await gauge() is not None:
            return gauge
    return None


async def _page(backend: Backend, url: str) -> bytes | None:
    try:
        async with backend.open("GET", url, None) as reply:
            body = await reply.read(MAX_BYTES)
            return body if reply.status == 200 else None
    except (ConnectFailed, Broken, TimeoutError):
        return None
