"""TLS connections to a stack, and HTTP/2 on them with its frames in a test's hands."""

from __future__ import annotations

import json
import socket
import ssl

import h2.config
import h2.connection
import h2.events

from tests.stack import Stack


def connect(stack: Stack, context: ssl.SSLContext) -> ssl.SSLSocket:
    sock = socket.create_connection(("127.0.0.1", stack.port), timeout=30)
    try:
        return context.wrap_socket(sock, server_hostname="localhost")
    except BaseException:
        sock.close()
        raise


class Http2:
    """One HTTP/2 connection, its frames in our hands. What comes on `unread` isn't taken in:
    no more of such a stream is let through than fits its first window.
    """

    def __init__(self, stack: Stack, context: ssl.SSLContext) -> None:
        context.set_alpn_protocols(["h2"])
        self._sock = connect(stack, context)
        assert self._sock.selected_alpn_protocol() == "h2"
        self._key = stack.key
        self._conn = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        )
        self._conn.initiate_connection()
        self.unread: set[int] = set()
        self.data: dict[int, bytes] = {}
        self.headers: dict[int, dict[str, str]] = {}
        self._flush()

    def post(self, body: dict[str, object]) -> int:
        stream = self._conn.get_next_available_stream_id()
        headers = [
            (":method", "POST"), (":path", "/v1/completions"), (":scheme", "https"),
            (":authority", "localhost"), ("authorization", f"Bearer {self._key}"),
            ("content-type", "application/json"),
        ]  # fmt: skip
        self._conn.send_headers(stream, headers)
        self._conn.send_data(stream, json.dumps(body).encode(), end_stream=True)
        self.data[stream] = b""
        self._flush()
        return stream

    def read_until(self, stream: int, mark: bytes) -> None:
        while mark not in self.data[stream]:
            received = self._sock.recv(65536)
            assert received, self.data[stream]
            for event in self._conn.receive_data(received):
                if isinstance(event, h2.events.DataReceived):
                    self.data[event.stream_id] += event.data
                    self._take(event)
                elif isinstance(event, h2.events.ResponseReceived):
                    self.headers[event.stream_id] = {str(k): str(v) for k, v in event.headers}
            self._flush()

    def _take(self, event: h2.events.DataReceived) -> None:
        size = event.flow_controlled_length
        if event.stream_id not in self.unread:
            self._conn.acknowledge_received_data(size, event.stream_id)
        elif size:
            self._conn.increment_flow_control_window(size)  # the connection's alone

    def reset(self, stream: int) -> None:
        self._conn.reset_stream(stream)
        self._flush()

    def close(self) -> None:
        self._sock.close()

    def _flush(self) -> None:
        self._sock.sendall(self._conn.data_to_send())
