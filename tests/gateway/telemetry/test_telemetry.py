"""Requests told to a collector: whose child a span is, what it says, and who never waits."""

from __future__ import annotations

import time
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from structlog.testing import capture_logs

from gateway.telemetry import exporter
from gateway.telemetry.exporter import MAX_QUEUED, Exporter
from gateway.telemetry.spans import Ended, attributes_of, span_of
from gateway.telemetry.traceparent import Parent, parent_of
from runtime.config.observability import OtelSettings
from tests.gateway.telemetry.collector import collector

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def ended(**more: Any) -> Ended:
    fields = {
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "duration_ms": 250.0,
        "request_id": "req_1",
        "model": "echo",
        "stream": True,
        "outcome": "completed",
        "input_tokens": 10,
        "cached_input_tokens": 4,
        "output_tokens": 7,
        "ttft_ms": 30.0,
        "tenant_name": "acme",
        "key": "key_1",
        "host": "h",
        "attempts": 1,
        **more,
    }
    return Ended(fields, None, 2_000_000_000)


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        (f"00-{TRACE}-{SPAN}-01", Parent(int(TRACE, 16), int(SPAN, 16), True)),
        (f" 00-{TRACE}-{SPAN}-00 ", Parent(int(TRACE, 16), int(SPAN, 16), False)),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", Parent(int(TRACE, 16), int(SPAN, 16), True)),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN}", None),
        ("", None),
        ("x" * 100_000, None),
    ],
)
def test_a_callers_trace_is_continued_and_a_broken_one_is_not(
    header: str, wanted: Parent | None
) -> None:
    assert parent_of(header) == wanted


def test_a_span_says_who_what_and_how_long() -> None:
    span = span_of(ended()._replace(parent=Parent(1, 2, True)), Resource.get_empty())
    assert (span.name, span.context.trace_id) == ("chat echo", 1)
    assert span.parent is not None
    assert span.parent.span_id == 2
    assert (span.start_time, span.end_time) == (1_750_000_000, 2_000_000_000)
    told = attributes_of(ended().fields)
    assert told["gen_ai.usage.input_tokens"] == 10
    assert told["gen_ai.usage.output_tokens"] == 7
    assert told["gen_ai.response.time_to_first_chunk"] == 0.03
    assert "error.type" not in told


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"status": 429, "code": "rate_limit_exceeded"}, "rate_limit_exceeded"),
        ({"status": 200, "code": "upstream_failed"}, "upstream_failed"),
        ({"status": 500}, "500"),
        ({"status": 499}, None),
    ],
)
def test_what_failed_is_an_error_and_a_client_that_left_is_none(
    more: dict[str, Any], error: str | None
) -> None:
    assert attributes_of(ended(**more).fields).get("error.type") == error


def test_requests_arrive_as_spans_and_metrics() -> None:
    with collector() as found:
        headers = {"authorization": "Bearer canary"}
        told = Exporter(OtelSettings(endpoint=found.url), headers, "here")
        for _ in range(3):
            told.put(ended())
        told.put(ended(path="/v1/models", model=None, method="GET"))
        told.close()
        assert sorted(span.name for span in found.spans) == ["GET /v1", *["chat echo"] * 3]
        assert found.authorizations == {"Bearer canary"}
        (name,) = {
            a.value.string_value for a in found.resources[0].attributes if a.key == "service.name"
        }
        assert name == "here"
        (point, _) = sorted(
            found.metrics["gen_ai.client.token.usage"].histogram.data_points,
            key=lambda point: point.sum,
        )
        assert (point.count, point.sum) == (3, 21)
        assert found.metrics["gen_ai.server.request.duration"].histogram.data_points[0].count == 3


def test_a_collector_that_is_down_is_told_of_once_and_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it can't take is dropped, and counted; and it's told when it takes again."""
    monkeypatch.setattr(exporter, "EVERY_S", 0.01)
    monkeypatch.setattr(exporter, "TIMEOUT_S", 0.5)
    with collector() as found, capture_logs() as logs:
        found.status = 400  # which isn't tried again
        told = Exporter(OtelSettings(endpoint=found.url), {}, "here")
        told.put(ended())
        _until(lambda: bool(logs))
        told.put(ended())
        found.status = 200
        while not found.spans:
            told.put(ended())
            time.sleep(0.02)
        _until(lambda: len(logs) == 2)
        told.close()
    assert [line["event"] for line in logs] == ["telemetry_not_taken", "telemetry_taken_again"]
    assert logs[1]["dropped"] >= 1


def test_a_queue_that_is_full_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "EVERY_S", 3600)
    with collector() as found:
        told = Exporter(OtelSettings(endpoint=found.url), {}, "here")
        for _ in range(MAX_QUEUED + 10):
            told.put(ended())
        told.close()
        assert len(found.spans) == MAX_QUEUED


def _until(holds: Any) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)
