"""An identity provider of the tests' own: HTTPS, with a certificate of an authority of theirs."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from gateway.identity.key_fetch import WELL_KNOWN
from tests.authority import Authority


@dataclass
class Provider:
    """An identity provider: what it answers by path, and what it was asked."""

    url: str = ""
    ca: str = ""
    answers: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def put(self, path: str, body: bytes, status: int = 200, **headers: str) -> None:
        self.answers[path] = status, headers, body

    def publish(self, keys: bytes) -> None:
        """These keys, and the metadata that says where they are. The URL is the issuer's name."""
        self.put("/keys", keys)
        told = {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        self.put(WELL_KNOWN, json.dumps(told).encode())


@contextmanager
def provider(folder: Path) -> Iterator[Provider]:
    authority = Authority(folder)
    issued = authority.issue()
    found = Provider(ca=str(authority.path))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked.append(self.path)
            status, headers, body = found.answers.get(self.path, (404, {}, b""))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.cert_path, issued.key_path)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    found.url = f"https://127.0.0.1:{server.server_port}"
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
