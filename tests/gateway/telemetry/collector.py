"""A collector: takes OTLP over HTTP and keeps what it was sent. It can refuse, and be silent."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass
class Collector:
    """What it has been sent, and how it answers."""

    url: str = ""
    status: int = 200
    silent_s: float = 0.0
    spans: list[Any] = field(default_factory=list)
    resources: list[Any] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    authorizations: set[str | None] = field(default_factory=set)
    raw: list[bytes] = field(default_factory=list)

    def take(self, path: str, body: bytes) -> None:
        self.raw.append(body)
        if path == "/v1/traces":
            request = ExportTraceServiceRequest.FromString(body)
            for part in request.resource_spans:
                self.resources.append(part.resource)
                for scope in part.scope_spans:
                    self.spans += scope.spans
        else:
            told = ExportMetricsServiceRequest.FromString(body)
            for of_resource in told.resource_metrics:
                for of_scope in of_resource.scope_metrics:
                    self.metrics |= {metric.name: metric for metric in of_scope.metrics}


@contextmanager
def collector() -> Iterator[Collector]:
    """Listens while the block runs."""
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            time.sleep(found.silent_s)
            if found.status == 200:
                found.authorizations.add(self.headers.get("authorization"))
                found.take(self.path, body)
            self.send_response(found.status)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
