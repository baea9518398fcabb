"""Very many streams, all open at once through one gateway worker: each gets its chunks, all along.

`make soak` opens 2,000.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from benchmarks.gateway.programs import Engine, engine
from benchmarks.load import Target
from runtime import open_files
from tests.e2e.crowd import body
from tests.e2e.gauges import in_progress
from tests.e2e.ledger import records
from tests.e2e.memory import rss_mb
from tests.stack import SOAK, Stack, running
from tests.waiting import until

pytestmark = pytest.mark.slow

STREAMS = 2_000 if SOAK else 300
FIRST = 20
IDLE = 1_100
PATIENCE_S = 180
AT_ONCE = 100  # that are being opened
EACH_GETS = 6  # chunks, while all are open
MOST_KIB = 96  # of the worker's memory for each
CONFIG = """
[[models]]
id = "paced-500"
engine = "openai"
url = "{url}"
cache = "salted"
max_in_flight = 4000
price = {{ input = "0.10", output = "0.30" }}
"""


class Reader(asyncio.Protocol):
    """Counts the chunks of one stream as they come."""

    def __init__(self) -> None:
        self.chunks = 0
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        self.chunks += data.count(b"data: {")

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False


@pytest.fixture
def elsewhere() -> Iterator[Engine]:
    open_files.raise_limit()  # for our own ends of the streams, and the engine's
    with engine(None) as running:
        yield running


@pytest.fixture
def stack(tmp_path: Path, elsewhere: Engine) -> Iterator[Stack]:
    with running(tmp_path, CONFIG.format(url=elsewhere.url)) as stack:
        yield stack


async def test_all_are_live_and_none_starves(stack: Stack, elsewhere: Engine) -> None:
    worker = stack.worker_pid()
    async with AsyncExitStack() as streams:
        # What a worker loads once isn't a stream's.
        await _opened(stack, FIRST, streams)
        before_mb = rss_mb(worker)
        readers = await _opened(stack, STREAMS, streams)
        assert in_progress(stack) == elsewhere.stats()["open"] == STREAMS + FIRST
        counts = [reader.chunks for reader in readers]

        def got() -> list[int]:
            return [reader.chunks - count for reader, count in zip(readers, counts, strict=True)]

        await until(lambda: min(got()) >= EACH_GETS, PATIENCE_S)
        assert max(got()) <= 3 * min(got()), "all at about the same pace"
        assert all(reader.is_open for reader in readers)
        grown_kib = (rss_mb(worker) - before_mb) * 1024 / STREAMS
        assert grown_kib <= MOST_KIB, f"{grown_kib:.0f} KiB for each"
    await until(lambda: in_progress(stack) == elsewhere.stats()["open"] == 0, PATIENCE_S)
    left = records(stack)
    assert len(left) == STREAMS + FIRST
    assert {row["outcome"] for row in left} == {"client_cancelled"}
    assert min(row["output_tokens"] for row in left) >= EACH_GETS


async def test_those_who_only_connect_hold_up_nobody(stack: Stack) -> None:
    """More than the 1,024 connections that granian takes by default."""
    async with AsyncExitStack() as streams:
        loop = asyncio.get_running_loop()
        for _ in range(IDLE):
            transport, _ = await loop.create_connection(Reader, "127.0.0.1", stack.port)
            streams.callback(transport.abort)
        (reader,) = await _opened(stack, 1, streams)
        assert reader.chunks


async def _opened(stack: Stack, count: int, streams: AsyncExitStack) -> list[Reader]:
    """So many streams, each with its first chunk; left by their client with `streams`."""
    headers = {"authorization": f"Bearer {stack.key}"}
    target = Target(f"{stack.url}/v1", "/chat/completions", headers)
    request = target.request(body("paced-500", max_tokens=100_000, stream=True))
    some = asyncio.Semaphore(AT_ONCE)

    async def opened() -> Reader:
        async with some:
            loop = asyncio.get_running_loop()
            transport, reader = await loop.create_connection(Reader, *target.address)
            streams.callback(transport.abort)
            transport.write(request)
            await until(lambda: reader.chunks or not reader.is_open, PATIENCE_S)
        return reader

    return await asyncio.gather(*(opened() for _ in range(count)))
