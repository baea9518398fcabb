"""A closed-loop load client: N connections, each sending its next request when it has its answer.

It shares the machine with what it measures, so it does little: sockets, an HTTP parser in C, and
one look at the clock for each read. Tokens are those that the server says it used.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools

from benchmarks.report import percentile
from runtime.wire import KEEP_ALIVE

TAIL_BYTES = 4096  # of an answer, kept: its usage is at the end
OUTPUT = re.compile(rb'"completion_tokens": ?(\d+)')
PROMPT = re.compile(rb'"prompt_tokens": ?(\d+)')


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go: a server's base URL, a path below it, and headers."""

    url: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    socket: str = ""  # a unix socket, where the server has no port
    bearer: Callable[[], str] | None = None  # a token for each request, where it doesn't last

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        return parts.hostname or "127.0.0.1", parts.port or 80

    def request(self, body: bytes) -> bytes:
        """A whole POST as bytes."""
        headers = {
            "host": "127.0.0.1",
            "content-type": "application/json",
            "content-length": str(len(body)),
            **self.headers,
        }
        if self.bearer is not None:
            headers["authorization"] = f"Bearer {self.bearer()}"
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        path = urlsplit(self.url).path.rstrip("/") + self.path
        return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body


@dataclass(slots=True)
class Sample:
    """One request. Times are `perf_counter` seconds; `arrivals` has one for each event."""

    began: float
    arrivals: list[float] = field(default_factory=list)
    ended: float = 0.0
    status: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    error: str = ""


@dataclass(slots=True)
class Run:
    """All the samples of one run under one load."""

    samples: list[Sample]
    wall_s: float

    @property
    def good(self) -> list[Sample]:
        """Those answered to the end."""
        return [sample for sample in self.samples if not sample.error]

    @property
    def errors(self) -> list[str]:
        """What went wrong with the others."""
        return [sample.error for sample in self.samples if sample.error]

    @property
    def requests_per_s(self) -> float:
        return len(self.good) / self.wall_s

    @property
    def tokens_per_s(self) -> float:
        return sum(sample.output_tokens for sample in self.good) / self.wall_s

    @property
    def events_per_s(self) -> float:
        return sum(len(sample.arrivals) for sample in self.good) / self.wall_s

    def ttft_ms(self, percent: float) -> float:
        """From the request to its first event."""
        firsts = [s.arrivals[0] - s.began for s in self.good if s.arrivals]
        return percentile(firsts, percent) * 1000

    def total_ms(self, percent: float) -> float:
        """From the request to the end of its answer."""
        return percentile([s.ended - s.began for s in self.good], percent) * 1000

    def gap_ms(self, percent: float) -> float:
        """Between one event and the next, but for the closing ones, which come together."""
        gaps = [
            later - earlier
            for s in self.good
            for earlier, later in zip(s.arrivals[:-3], s.arrivals[1:-2], strict=True)
        ]
        return percentile(gaps, percent) * 1000


class Connection(asyncio.Protocol):
    """One kept-alive connection, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._sample: Sample | None = None
        self._done: asyncio.Future[None] | None = None
        self._now = 0.0
        self._tail = b""
        self._is_stream = False

    async def ask(self, request: bytes) -> Sample:
        """Send one request and wait for the end of its answer."""
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._tail, self._is_stream = b"", False
        self._done = asyncio.get_running_loop().create_future()
        sample = self._sample = Sample(time.perf_counter())
        self._transport.write(request)
        await self._done
        _read_tail(sample, self._tail, self._is_stream)
        return sample

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            assert self._sample is not None
            events = len(self._sample.arrivals)
            self._sample.error = f"the connection was closed after {events} events"
            self.on_message_complete()

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._is_stream = value.startswith(b"text/event-stream")

    def on_body(self, body: bytes) -> None:
        if self._is_stream and (events := body.count(b"\n\n") - _comments(body)):
            assert self._sample is not None
            self._sample.arrivals += [self._now] * events
        self._tail = (self._tail + body)[-TAIL_BYTES:]

    def on_message_complete(self) -> None:
        assert self._sample is not None
        assert self._done is not None
        self._sample.ended = time.perf_counter()
        self._sample.status = self._sample.status or self._parser.get_status_code()
        if not self._done.done():
            self._done.set_result(None)


async def closed_loop(
    target: Target,
    bodies: Iterator[bytes],
    clients: int,
    *,
    requests: int = 0,
    seconds: float = 0.0,
    stagger_s: float = 0.0,
    patience_s: float = 120.0,
    keep_alive: bool = True,
) -> Run:
    """Load `target` until so many requests were sent, or for so long; then wait for their answers.

    `stagger_s`: the time over which the clients' first requests are spread.
    """
    samples: list[Sample] = []
    began = time.perf_counter()
    stop = began + (seconds or 1e9)
    left = iter(range(requests or 10**9))

    async def client(number: int) -> None:
        await asyncio.sleep(stagger_s * number / clients)
        connection = Connection()
        while time.perf_counter() < stop and next(left, None) is not None:
            if not connection.is_open:
                connection = await connect(target)
            samples.append(await ask(connection, target.request(next(bodies)), patience_s))
            if not keep_alive:
                connection.close()
        connection.close()

    await asyncio.gather(*(client(number) for number in range(clients)))
    return Run(samples, time.perf_counter() - began)


async def connect(target: Target) -> Connection:
    """A new connection; one that isn't open if nobody listens."""
    try:
        loop = asyncio.get_running_loop()
        if target.socket:
            _, connection = await loop.create_unix_connection(Connection, target.socket)
        else:
            _, connection = await loop.create_connection(Connection, *target.address)
    except OSError:
        await asyncio.sleep(0.1)
        return Connection()
    return connection


async def ask(connection: Connection, request: bytes, patience_s: float) -> Sample:
    """One request over it; its `error` says what went wrong."""
    began = time.perf_counter()
    if not connection.is_open:
        return Sample(began, ended=began, error="no connection")
    try:
        return await asyncio.wait_for(connection.ask(request), patience_s)
    except TimeoutError:
        connection.close()
        return Sample(began, ended=time.perf_counter(), error="no answer in time")


def _comments(body: bytes) -> int:
    """Signs of life among events: ours, and llama.cpp's empty ones."""
    return body.count(KEEP_ALIVE) + body.count(b":\n\n")


def _read_tail(sample: Sample, tail: bytes, is_stream: bool) -> None:
    """What the end of the answer says: usage, and whether it is the end."""
    if sample.error:
        return
    if sample.status != 200:
        sample.error = f"status {sample.status}: {tail[:200].decode(errors='replace')}"
    elif is_stream and b"data: [DONE]" not in tail:
        sample.error = "the stream was cut"
    for name, pattern in (("output_tokens", OUTPUT), ("prompt_tokens", PROMPT)):
        if found := pattern.findall(tail):
            setattr(sample, name, int(found[-1]))
