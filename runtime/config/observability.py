"""The config's `[observability]`: what is told of requests, and to whom. Never their text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct

from runtime.config.kinds import OptionalSecret, Seconds, Share, is_http_url


class OtelSettings(Struct, frozen=True, kw_only=True):
    """The OpenTelemetry collector that requests are told to. It needs the extra `otel`."""

    endpoint: str = ""  # OTLP over HTTP, without /v1/traces; "": none
    authorization_secret: OptionalSecret = ""  # the secret with the header `authorization`
    metrics_every_s: Seconds = 60.0

    @staticmethod
    def faults(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """A URL."""
        if found.get("endpoint") and not is_http_url(found["endpoint"]):
            yield "endpoint", 'expected a URL such as "http://127.0.0.1:4318"'


class ObservabilitySettings(Struct, frozen=True, kw_only=True):
    """What is written down of each request."""

    enabled: bool = True
    head_sampling_rate: Share = 1.0  # of the requests that succeed; the others are always told
    level: Literal["debug", "info", "warning", "error"] = "info"
    otel: OtelSettings = OtelSettings()
