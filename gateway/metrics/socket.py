"""The way from a gateway's worker to whoever asks on its machine: a socket beside the node's.

A connection is answered with all there is, as JSON, and closed. Workers come and go, and a killed
one leaves its socket, which the next one removes; whoever asks meanwhile finds nobody there.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec

from gateway.metrics.families import Sample, Told, all_of

TIMEOUT_S = 2.0
MAX_BYTES = 64 * 1024 * 1024
_NAME = "gateway-{}.sock"


@asynccontextmanager
async def answering(folder: Path, samples: Callable[[], Iterable[Sample]]) -> AsyncIterator[None]:
    """Tells whoever connects, until it is left."""
    path = folder / _NAME.format(os.getpid())
    path.unlink(missing_ok=True)  # of another process of that number, long gone
    _clear(folder)

    async def tell(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(msgspec.json.encode(Told(os.getpid(), all_of(samples()))))
        with suppress(OSError):
            writer.close()
            await writer.wait_closed()

    before = os.umask(0o177)
    try:
        server = await asyncio.start_unix_server(tell, path)
    finally:
        os.umask(before)
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)


def _clear(folder: Path) -> None:
    """Away with the sockets of killed workers."""
    before, after = _NAME.split("{}")
    for path in folder.glob(_NAME.format("*")):
        try:
            os.kill(int(path.name.removeprefix(before).removesuffix(after)), 0)
        except ProcessLookupError:
            path.unlink(missing_ok=True)


async def ask_all(folder: Path) -> list[Told]:
    """What those say that live, by their process ids."""
    names = await asyncio.to_thread(lambda: list(folder.glob(_NAME.format("*"))))
    told = await asyncio.gather(*(_ask(path) for path in names))
    return sorted((one for one in told if one is not None), key=lambda one: one.pid)


async def _ask(path: Path) -> Told | None:
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                return msgspec.json.decode(await reader.read(MAX_BYTES + 1), type=Told)
            finally:
                writer.close()
    except (OSError, TimeoutError, msgspec.MsgspecError):
        return None
