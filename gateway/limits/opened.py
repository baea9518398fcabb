"""A process's gate, opened: what counts behind it is the config's choice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from gateway.limits.alone import Alone
from gateway.limits.fallback import Fallback
from gateway.limits.gate import Gate
from gateway.limits.limiter import Limiter
from gateway.limits.redis_client import Address, RedisClient
from gateway.limits.redis_limiter import RedisLimiter
from runtime.config.limits import LimitSettings
from runtime.tls.contexts import Followed


@asynccontextmanager
async def open_gate(
    settings: LimitSettings, password: str, process: str, folder: Path
) -> AsyncIterator[Gate]:
    """Lets requests in, and renews what they hold. `process` is a name that no other has.

    Relative paths of certificates start at `folder`.
    """
    async with AsyncExitStack() as stack:
        gate = Gate(_limiter(stack, settings, password, process, folder))
        await gate.beat()
        keeping = asyncio.create_task(gate.keep())
        try:
            yield gate
        finally:
            keeping.cancel()
            with suppress(asyncio.CancelledError):
                await keeping
            await gate.drain()


def _limiter(
    stack: AsyncExitStack, settings: LimitSettings, password: str, process: str, folder: Path
) -> Limiter:
    def replicas() -> int:
        return settings.replicas

    url, name, timeout_s = settings.redis.url, settings.redis.name, settings.redis.timeout_s
    if not url:
        return Alone(replicas)
    redis = RedisClient(Address.of(url, password), Followed(settings.redis.tls, folder))
    stack.push_async_callback(redis.aclose)
    return Fallback(RedisLimiter(redis, name, timeout_s), process, replicas)
