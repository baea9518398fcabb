"""A webhook's receiver: a real HTTP server, which fails in the ways that servers do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

Do = Callable[[BaseHTTPRequestHandler], None]


@dataclass(frozen=True)
class Got:
    path: str
    headers: dict[str, str]
    body: bytes


def status(code: int, **headers: str) -> Do:
    def do(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in {"content-length": "0", **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()

    return do


def cut(handler: BaseHTTPRequestHandler) -> None:
    """Nothing is said, and the connection ends."""
    handler.close_connection = True


class Receiver:
    """What it does next is in `script`, then it accepts; what it got is in `got`."""

    def __init__(self, port: int = 0) -> None:
        self.script: list[Do] = []
        self.got: list[Got] = []
        self.released = threading.Event()  # ends what hangs
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.got.append(Got(self.path, headers, body))
                do = receiver.script.pop(0) if receiver.script else status(204)
                do(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # a client that had enough

        self._server = Server(("127.0.0.1", port), Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def hang(self, handler: BaseHTTPRequestHandler) -> None:
        """No answer, as long as the test lasts."""
        self.released.wait(60)

    def drip(self, handler: BaseHTTPRequestHandler) -> None:
        """An answer's head that never ends."""
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        for number in count():
            handler.wfile.write(b"x-%d: 1\r\n" % number)
            if self.released.wait(0.05):
                return

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def receiving(port: int = 0) -> Iterator[Receiver]:
    receiver = Receiver(port)
    receiver.start()
    try:
        yield receiver
    finally:
        receiver.stop()
