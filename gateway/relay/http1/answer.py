"""One answer, read from bytes as they come. No I/O.

llhttp (by httptools) cuts the bytes up, in its strict mode. What it lets pass and we don't, since
two readers could see different answers in it, is refused here: an upstream may be hostile, and no
byte of one answer may ever be taken for another's.
"""

from __future__ import annotations

import re

import httptools

from gateway.relay.http1.faults import Broken

MAX_HEAD_BYTES = 64 * 1024  # also of what stands between two pieces of a body, and of trailers
VERSIONS = ("1.1", "1.0")
SWITCHING = 101
BODILESS = (204, 304)
TAIL_BYTES = 5  # two line breaks, and what stands before them
CONTROL = re.compile(rb"[^\t\x20-\x7e\x80-\xff]")

Headers = list[tuple[bytes, bytes]]


class Answer:
    """The answer to one request. `feed` and `end` raise Broken; nothing may be fed after that."""

    def __init__(self, method: str = "GET") -> None:
        self.status = 0
        self.headers: Headers = []  # names in lower case
        self.has_head = False  # status and headers are in
        self.is_done = False
        self.held = 0  # bytes of the body that wait to be taken
        self._has_body = method != "HEAD"
        self._is_begun = False
        self._is_by_end = False  # the connection's end is the answer's
        self._may_follow = False
        self._start = b"HTTP/"  # of it, what hasn't come yet
        self._tail = b""  # the last bytes that came
        self._is_chunked = False
        self._last_piece = b""
        self._framing = 0  # bytes since the last of a body
        self._fields = 0  # bytes of header fields
        self._pieces: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)

    @property
    def may_follow(self) -> bool:
        """Whether the connection may be used for another request."""
        return self.is_done and self._may_follow

    @property
    def is_begun(self) -> bool:
        """Whether a byte of it has come."""
        return self._is_begun

    def feed(self, data: bytes | memoryview) -> None:
        """Take in what came. Bytes that stand after its end poison the connection, no more."""
        self._is_begun = True
        if self.is_done:
            self._may_follow = False
            return
        if self._start:  # the parser takes other protocols' answers, too
            begin = bytes(data[: len(self._start)])
            if not self._start.startswith(begin):
                raise Broken("it isn't HTTP")
            self._start = self._start[len(begin) :]
        self._framing += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise Broken("it wants to switch protocols") from None
        except httptools.HttpParserError as fault:
            if self.is_done:  # it is whole: what follows it isn't
                self._may_follow = False
                return
            told = fault.__context__ if isinstance(fault.__context__, Broken) else fault
            raise Broken(str(told)) from None
        tail = bytes(data[-TAIL_BYTES:])
        self._tail = tail if len(tail) == TAIL_BYTES else (self._tail + tail)[-TAIL_BYTES:]
        if self.is_done:
            self._may_follow = self._may_follow and self._is_at_end()
        elif self._framing > MAX_HEAD_BYTES:
            raise Broken(f"more than {MAX_HEAD_BYTES} bytes that aren't of a body")

    def end(self) -> None:
        """The connection has ended: so may the answer."""
        self._may_follow = False
        if self.is_done:
            return
        if not (self.has_head and self._is_by_end):
            raise Broken("the connection was closed" + (" within an answer" * self._is_begun))
        self.is_done = True

    def take(self) -> bytes:
        """The bytes of the body that have come since the last time."""
        pieces = self._pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self.held = 0
        return body

    # what the parser calls

    def on_message_begin(self) -> None:
        """A second one is nobody's."""
        if self.is_done:
            self._may_follow = False

    def on_status(self, reason: bytes) -> None:
        """What the status line says beside the number, or a part of it."""
        if CONTROL.search(reason):
            raise Broken("a control character in its status line")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head; trailers are let go."""
        self._fields += len(name) + len(value)
        if self._fields > MAX_HEAD_BYTES:
            raise Broken(f"more than {MAX_HEAD_BYTES} bytes of header fields")
        if not self.has_head:
            self.headers.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        """The end of a head, which may be one of those before the answer's own."""
        if self.is_done:
            return
        self.status = self._parser.get_status_code()
        if self.status == SWITCHING:
            raise Broken("it switches protocols")
        version = self._parser.get_http_version()
        if version not in VERSIONS or not 100 <= self.status <= 599:
            raise Broken(f"HTTP/{version} with status {self.status}")
        has_length = self._check_length(version)
        self._is_by_end = not has_length
        if self.status < 200 and has_length:
            raise Broken("a body where there can't be one")
        self.has_head = self.status >= 200
        is_bodiless = not self._has_body or (self.status in BODILESS and has_length)
        if self.has_head and is_bodiless:
            self.is_done = True  # what its head tells of isn't there; the parser waits for it

    def on_body(self, body: bytes) -> None:
        """A piece of the body, or of what is nobody's."""
        if self.is_done:
            return
        self._framing = 0
        self._last_piece = body
        self._pieces.append(body)
        self.held += len(body)

    def on_message_complete(self) -> None:
        """The end, unless it was of a head such as "100 Continue"."""
        if self.is_done:
            return
        if not self.has_head:
            self.headers = []
            return
        self.is_done = True
        self._may_follow = self._parser.should_keep_alive()

    def _check_length(self, version: str) -> bool:
        """Whether the head says where the body ends. Raises Broken if it says so in doubt."""
        lengths = [value for name, value in self.headers if name == b"content-length"]
        codings = [value for name, value in self.headers if name == b"transfer-encoding"]
        if not codings and len(lengths) == 1 and lengths[0].isdigit():
            return True
        if codings and (lengths or version == "1.0"):
            raise Broken("its length is told in two ways")
        if codings and (len(codings) > 1 or codings[0].lower() != b"chunked"):
            raise Broken("a transfer coding that isn't chunked")
        if lengths:
            raise Broken("a content length that isn't one number")
        self._is_chunked = bool(codings)
        return self._is_chunked

    def _is_at_end(self) -> bool:
        """Whether nothing came after the answer: the parser skips blank lines there in silence.

        A piece of a body that is nothing but line breaks leaves it in doubt, which counts as no.
        """
        piece, came = self._last_piece[-TAIL_BYTES:], _breaks(self._tail)
        if self._is_chunked or not piece:
            return came == 4  # the blank line after the fields, and no more
        return came == _breaks(piece) < len(piece)


def _breaks(data: bytes) -> int:
    """How many bytes of line breaks it ends in."""
    return len(data) - len(data.rstrip(b"\r\n"))
