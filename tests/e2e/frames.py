"""HTTP/2 as no honest client speaks it: frames made by hand, sent whether or not they may be."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import h2.settings
import hpack
from hyperframe.frame import Frame, GoAwayFrame, HeadersFrame, SettingsFrame

from tests.e2e.http2 import connect
from tests.stack import Stack

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PATIENCE_S = 2  # for a server that takes nothing more
HEAD_BYTES = 9  # of a frame


class Frames:
    """One connection. Its streams are numbered by `stream`, its heads coded in that order."""

    def __init__(
        self, stack: Stack, context: ssl.SSLContext, settings: dict[int, int] | None = None
    ) -> None:
        context.set_alpn_protocols(["h2"])
        self._sock = connect(stack, context)
        self._encoder = hpack.Encoder()
        self._received = b""
        self._stream = -1
        self.send(PREFACE + SettingsFrame(settings=settings).serialize())

    def stream(self) -> int:
        self._stream += 2
        return self._stream

    def head(self, stream: int, path: str, flags: tuple[str, ...] = ("END_HEADERS",)) -> bytes:
        """Of a GET, in one frame."""
        pairs = [(":method", "GET"), (":path", path), (":scheme", "https"), (":authority", "x")]
        frame = HeadersFrame(stream, self._encoder.encode(pairs), flags=("END_STREAM", *flags))
        return frame.serialize()

    def send(self, data: bytes) -> bool:
        """Whether the server took it: it may have hung up, or read no more."""
        self._sock.settimeout(PATIENCE_S)
        try:
            self._sock.sendall(data)
        except OSError:
            return False
        return True

    def told(self) -> dict[int, int]:
        """The server's own settings, its first frame."""
        frame = next(self._frames())
        assert isinstance(frame, SettingsFrame)
        return {int(h2.settings.SettingCodes(k)): v for k, v in frame.settings.items()}

    def goodbye(self) -> GoAwayFrame:
        """Read until the server ends the connection, which it has to say why."""
        return next(frame for frame in self._frames() if isinstance(frame, GoAwayFrame))

    def _frames(self) -> Iterator[Frame]:
        self._sock.settimeout(60)
        while True:
            while len(self._received) < HEAD_BYTES:
                self._receive()
            frame, length = Frame.parse_frame_header(memoryview(self._received[:HEAD_BYTES]))
            while len(self._received) < HEAD_BYTES + length:
                self._receive()
            frame.parse_body(memoryview(self._received[HEAD_BYTES : HEAD_BYTES + length]))
            self._received = self._received[HEAD_BYTES + length :]
            yield frame

    def _receive(self) -> None:
        data = self._sock.recv(65536)
        assert data, "it hung up without a word"
        self._received += data

    def close(self) -> None:
        self._sock.close()
