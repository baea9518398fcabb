"""A request as a span, by OpenTelemetry's conventions for generative AI. No text is in it.

This module needs the extra `otel`: it is imported by whoever is told an endpoint.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, NamedTuple

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from gateway.telemetry.traceparent import Parent
from gateway.version import version

SCOPE = InstrumentationScope("bulkhead", version())
SAMPLED = TraceFlags(TraceFlags.SAMPLED)
OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}
PROVIDER = "bulkhead"


class Ended(NamedTuple):
    """A request that has ended: what its log line says, whose child it is, and when it was."""

    fields: Mapping[str, Any]
    parent: Parent | None
    ended_ns: int


def span_of(ended: Ended, resource: Resource) -> ReadableSpan:
    """The request's span; its trace is the caller's, or a new one."""
    fields, parent = ended.fields, ended.parent
    operation, model = OPERATIONS.get(fields["path"]), fields.get("model")
    trace_id = parent.trace_id if parent else random.getrandbits(128) or 1
    span_id = random.getrandbits(64) or 1
    context = SpanContext(trace_id, span_id, is_remote=False, trace_flags=SAMPLED)
    return ReadableSpan(
        name=f"{operation} {model}" if operation and model else f"{fields['method']} /v1",
        context=context,
        parent=_remote(parent) if parent else None,
        resource=resource,
        attributes=attributes_of(fields),
        kind=SpanKind.SERVER,
        status=Status(StatusCode.ERROR if _has_failed(fields) else StatusCode.UNSET),
        start_time=ended.ended_ns - round(fields["duration_ms"] * 1e6),
        end_time=ended.ended_ns,
        instrumentation_scope=SCOPE,
    )


def attributes_of(fields: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    """What is known of a request, by the names that collectors know."""
    ttft_ms = fields.get("ttft_ms")
    found = {
        "http.request.method": fields["method"],
        "http.response.status_code": fields["status"],
        "url.path": fields["path"],
        "gen_ai.operation.name": OPERATIONS.get(fields["path"]),
        "gen_ai.provider.name": PROVIDER if fields.get("model") else None,
        "gen_ai.request.model": fields.get("model"),
        "gen_ai.request.stream": fields.get("stream"),
        "gen_ai.usage.input_tokens": fields.get("input_tokens"),
        "gen_ai.usage.cache_read.input_tokens": fields.get("cached_input_tokens"),
        "gen_ai.usage.output_tokens": fields.get("output_tokens"),
        "gen_ai.response.time_to_first_chunk": None if ttft_ms is None else ttft_ms / 1000,
        "error.type": _error_of(fields) if _has_failed(fields) else None,
        "bulkhead.request.id": fields["request_id"],
        "bulkhead.tenant.name": fields.get("tenant_name"),
        "bulkhead.key.id": fields.get("key"),
        "bulkhead.outcome": fields.get("outcome"),
        "bulkhead.host": fields.get("host"),
        "bulkhead.attempts": fields.get("attempts"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _remote(parent: Parent) -> SpanContext:
    return SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=SAMPLED)


def _has_failed(fields: Mapping[str, Any]) -> bool:
    """By the server's fault or the caller's. A client that left made no mistake."""
    return fields["status"] != 499 and (fields["status"] >= 400 or bool(fields.get("code")))


def _error_of(fields: Mapping[str, Any]) -> str:
    return fields.get("code") or str(fields["status"])
