"""Spans and metrics on their way to a collector, by OTLP over HTTP, in a thread of their own.

A request only puts what its log line says into a bounded queue. What the collector can't take is
dropped and counted: no request waits for it, and the log says so once.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import structlog
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SpanExportResult

from gateway.telemetry.spans import OPERATIONS, PROVIDER, Ended, span_of
from gateway.version import version
from runtime.config.observability import OtelSettings

log = structlog.get_logger()

MAX_QUEUED = 4096
BATCH = 512
EVERY_S = 1.0
TIMEOUT_S = 5.0
# The conventions' own bounds.
SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TOKENS = tuple(4**n for n in range(14))


class Exporter:
    """A thread, from the first request on until `close`."""

    def __init__(self, settings: OtelSettings, headers: Mapping[str, str], name: str) -> None:
        base = settings.endpoint.rstrip("/")
        self._resource = Resource.create({"service.name": name, "service.version": version()})
        self._spans = OTLPSpanExporter(f"{base}/v1/traces", headers=headers, timeout=TIMEOUT_S)
        sent = OTLPMetricExporter(f"{base}/v1/metrics", headers=headers, timeout=TIMEOUT_S)
        reader = PeriodicExportingMetricReader(sent, settings.metrics_every_s * 1000)
        of_time, of_tokens = map(ExplicitBucketHistogramAggregation, (SECONDS, TOKENS))
        views = [
            View(instrument_name="gen_ai.server.*", aggregation=of_time),
            View(instrument_name="gen_ai.client.token.usage", aggregation=of_tokens),
        ]
        self._provider = MeterProvider([reader], self._resource, views=views)
        meter = self._provider.get_meter("bulkhead", version())
        self._duration = meter.create_histogram("gen_ai.server.request.duration", "s")
        self._first = meter.create_histogram("gen_ai.server.time_to_first_token", "s")
        self._tokens = meter.create_histogram("gen_ai.client.token.usage", "{token}")
        self._queue: deque[Ended] = deque()
        self._closing = threading.Event()
        self._dropped = 0
        self._is_failing = False
        self._thread = threading.Thread(target=self._main, name="telemetry", daemon=True)
        self._thread.start()

    def put(self, ended: Ended) -> None:
        """Take a request. Never blocks, never raises."""
        if len(self._queue) >= MAX_QUEUED:
            self._dropped += 1
            return
        self._queue.append(ended)

    def close(self) -> None:
        """Send what is queued, in TIMEOUT_S at most, and end. Blocks."""
        self._closing.set()
        self._thread.join(2 * TIMEOUT_S)

    def _main(self) -> None:
        while not self._closing.wait(EVERY_S):
            self._drain()
        self._drain()
        self._spans.shutdown()  # type: ignore[no-untyped-call]
        self._provider.shutdown(TIMEOUT_S * 1000)

    def _drain(self) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while self._queue and time.monotonic() < deadline:
            batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
            for ended in batch:
                self._measure(ended.fields)
            spans = [span_of(one, self._resource) for one in batch]
            self._judge(self._spans.export(spans) is SpanExportResult.SUCCESS, len(batch))

    def _measure(self, fields: Mapping[str, Any]) -> None:
        """What the conventions have metrics for."""
        operation, model = OPERATIONS.get(fields["path"]), fields.get("model")
        if operation is None or model is None:
            return
        labels = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": model,
        }
        failed = {"error.type": str(code)} if (code := fields.get("code")) else {}
        self._duration.record(fields["duration_ms"] / 1000, {**labels, **failed})
        if (ttft_ms := fields.get("ttft_ms")) is not None:
            self._first.record(ttft_ms / 1000, labels)
        for direction in ("input", "output"):
            if (number := fields.get(f"{direction}_tokens")) is not None:
                self._tokens.record(number, {**labels, "gen_ai.token.type": direction})

    def _judge(self, was_taken: bool, number: int) -> None:
        if not was_taken:
            self._dropped += number
        if was_taken and self._is_failing:
            log.warning("telemetry_taken_again", dropped=self._dropped)
            self._dropped = 0
        elif not was_taken and not self._is_failing:
            log.warning("telemetry_not_taken", dropped=self._dropped)
        self._is_failing = not was_taken
