"""A fast fake OpenAI server: canned answers, streamed or whole, so that gateways can be timed.

The model's name says how: `plain` answers as fast as it can, `paced-20` sends a chunk each 20 ms.
`max_tokens` is the number of chunks. Prints `READY http://127.0.0.1:PORT/v1`; ends on SIGTERM or
when its stdin closes.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

import httptools
import msgspec

READY = "READY "
SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
COMMON = {"id": "chatcmpl-upstream", "created": 1700000000, "model": "plain"}
TEXT = "a quick answer that says nothing at all, at some length. " * 5
PROMPT_TOKENS = 100
LAST = b"0\r\n\r\n"


class Ask(msgspec.Struct):
    """What is read of a request."""

    model: str
    max_tokens: int = 64
    stream: bool = False


def _chunk(event: bytes) -> bytes:
    data = b"data: " + event + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def _event(delta: dict[str, str], finish: str | None) -> bytes:
    choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
    body = COMMON | {"object": "chat.completion.chunk", "choices": choices}
    return _chunk(msgspec.json.encode(body))


def _usage(output: int) -> dict[str, int]:
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": output,
        "total_tokens": PROMPT_TOKENS + output,
    }


def _closing(output: int) -> bytes:
    body = COMMON | {"object": "chat.completion.chunk", "choices": [], "usage": _usage(output)}
    usage = _chunk(msgspec.json.encode(body))
    return _event({}, "length") + usage + _chunk(b"[DONE]") + LAST


def _whole(output: int) -> bytes:
    message = {"role": "assistant", "content": TEXT}
    choices = [{"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}]
    answer = COMMON | {"object": "chat.completion", "choices": choices, "usage": _usage(output)}
    body = msgspec.json.encode(answer)
    return JSON_HEAD % len(body) + body


WORD = _event({"content": " word"}, None)
decode = msgspec.json.Decoder(Ask).decode
closings: dict[int, bytes] = {}  # by output tokens, as they are asked for
wholes: dict[int, bytes] = {}


class Server(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""
        self._timer: asyncio.Handle | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._body = b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if not self._body:  # a GET: asks whether we are there
            self._transport.write(JSON_HEAD % 2 + b"{}")
            return
        ask = decode(self._body)
        if not ask.stream:
            whole = wholes.get(ask.max_tokens) or wholes.setdefault(
                ask.max_tokens, _whole(ask.max_tokens)
            )
            self._transport.write(whole)
            return
        kind, _, pace_ms = ask.model.partition("-")
        self._transport.write(SSE_HEAD)
        pace_s = int(pace_ms) / 1000 if kind == "paced" else 0.0
        self._write(ask.max_tokens, ask.max_tokens, pace_s, asyncio.get_running_loop().time())

    def _write(self, left: int, of: int, pace_s: float, due: float) -> None:
        """One chunk, and the next one a pace after this one was due."""
        if not left:
            closing = closings.get(of) or closings.setdefault(of, _closing(of))
            self._transport.write(closing)
            return
        self._transport.write(WORD)
        loop, following = asyncio.get_running_loop(), (left - 1, of, pace_s, due + pace_s)
        if pace_s:
            self._timer = loop.call_at(due + pace_s, self._write, *following)
        else:
            self._timer = loop.call_soon(self._write, *following)


async def serve() -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_reader(sys.stdin, stop.set)  # nobody writes to it, so it's the end
    server: Any = await loop.create_server(Server, "127.0.0.1", 0)
    print(f"{READY}http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await stop.wait()


if __name__ == "__main__":
    asyncio.run(serve())
