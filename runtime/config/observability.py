"""The config's `[observability]`: what is told of requests, and to whom.

Never their text, but of the tenants that `payloads` names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct

from runtime.config.kinds import Count, OptionalSecret, Seconds, Share, is_http_url


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


class PayloadSettings(Struct, frozen=True, kw_only=True):
    """Tenants whose prompts and answers are kept in files, for the operator to read."""

    tenants: tuple[str, ...] = ()  # by name; none unless they are named
    folder: str = "payloads"  # in the state folder
    days: Count = 7  # UTC; older files are removed
    max_bytes: Count = 65536  # of a prompt, and of an answer as it was sent

    @staticmethod
    def faults(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """Names of tenants, each once."""
        names = found.get("tenants") or ()
        for i, name in enumerate(names):
            if not name:
                yield f"tenants[{i}]", "expected a tenant's name"
            elif name in names[:i]:
                yield f"tenants[{i}]", "is there twice"


class ObservabilitySettings(Struct, frozen=True, kw_only=True):
    """What is written down of each request."""

    enabled: bool = True
    head_sampling_rate: Share = 1.0  # of the requests that succeed; the others are always told
    level: Literal["debug", "info", "warning", "error"] = "info"
    otel: OtelSettings = OtelSettings()
    payloads: PayloadSettings = PayloadSettings()
