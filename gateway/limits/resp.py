"""Redis' wire format, RESP 2: a call as bytes, and replies as they come. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Word = str | int

MAX_BUFFER = 1 << 20  # of a reply that hasn't ended: ours are numbers


class Fault(Exception):
    """What Redis answers in place of a reply. Begins with a word for its kind, as NOSCRIPT."""


Reply = int | bytes | Fault | list[Any] | None


class BadReply(Exception):
    """What came is no reply of Redis'."""


def call(words: Sequence[Word]) -> bytes:
    """A command and its arguments."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word.encode() if isinstance(word, str) else b"%d" % word
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


class Replies:
    """Bytes as they come, to replies."""

    def __init__(self) -> None:
        self._buffer = b""

    def push(self, data: bytes) -> list[Reply]:
        """The replies that end in these bytes. Raises BadReply."""
        self._buffer += data
        found: list[Reply] = []
        start = 0
        try:
            while (one := _reply(self._buffer, start)) is not None:
                reply, start = one
                found.append(reply)
        except ValueError:
            raise BadReply("not a reply of Redis'") from None
        self._buffer = self._buffer[start:]
        if len(self._buffer) > MAX_BUFFER:
            raise BadReply("a reply without an end")
        return found


def _reply(data: bytes, start: int, depth: int = 0) -> tuple[Reply, int] | None:
    """The reply that begins there, and where it ends; None: it hasn't ended. Raises ValueError."""
    end = data.find(b"\r\n", start)
    if end < 0:
        return None
    kind, text, after = data[start : start + 1], data[start + 1 : end], end + 2
    if kind == b"+":
        return text, after
    if kind == b"-":
        return Fault(text.decode(errors="replace")), after
    number = int(text)
    if kind == b":":
        return number, after
    if kind == b"$":
        return _text(data, after, number)
    if kind == b"*" and depth < 4:
        return _list(data, after, number, depth)
    raise ValueError(kind)


def _text(data: bytes, start: int, size: int) -> tuple[Reply, int] | None:
    if size < 0:
        return None, start
    end = start + size
    if len(data) < end + 2:
        return None
    if data[end : end + 2] != b"\r\n":
        raise ValueError("no end")
    return data[start:end], end + 2


def _list(data: bytes, start: int, size: int, depth: int) -> tuple[Reply, int] | None:
    if size < 0:
        return None, start
    items: list[Reply] = []
    for _ in range(size):
        one = _reply(data, start, depth + 1)
        if one is None:
            return None
        item, start = one
        items.append(item)
    return items, start
