"""Pieces of raw ASGI that several listeners of ours need."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive


async def while_connected(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Do the work, and give it up when the caller leaves."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.wait((working, gone))
    if not working.cancelled() and (fault := working.exception()):
        raise fault


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
