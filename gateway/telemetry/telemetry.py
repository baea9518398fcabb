"""Where requests are told to a collector, if the config names one. A reload may name another."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from anyio import to_thread

from gateway.telemetry.traceparent import parent_of
from runtime.config.observability import OtelSettings
from runtime.settings import Settings

if TYPE_CHECKING:
    from gateway.telemetry.exporter import Exporter


class Telemetry:
    """Nothing at all until `keep` was told of an endpoint."""

    def __init__(self) -> None:
        self._settings = OtelSettings()
        self._headers: Mapping[str, str] = {}
        self._exporter: Exporter | None = None

    def saw(self, fields: Mapping[str, Any], header: Callable[[bytes], str]) -> None:
        """A request has ended; `header` gives the caller's. Never blocks."""
        if self._exporter is None:
            return
        from gateway.telemetry.spans import Ended

        parent = parent_of(header(b"traceparent"))
        self._exporter.put(Ended(fields, parent, time.time_ns()))

    async def keep(self, settings: Settings) -> None:
        """Tell whom these settings name, and nobody else."""
        wanted = settings.file.observability.otel
        headers = _headers(wanted, settings.secrets)
        if (wanted, headers) == (self._settings, self._headers):
            return
        before, self._exporter = self._exporter, None
        self._settings, self._headers = wanted, headers
        if wanted.endpoint:
            # An extra, so it's loaded only by who uses it; preflight says so if it isn't there.
            from gateway.telemetry.exporter import Exporter

            self._exporter = Exporter(wanted, headers, settings.file.name)
        if before is not None:
            await to_thread.run_sync(before.close)

    async def aclose(self) -> None:
        """Send what is queued, and end."""
        if self._exporter is not None:
            exporter, self._exporter = self._exporter, None
            await to_thread.run_sync(exporter.close)


def _headers(wanted: OtelSettings, secrets: Mapping[str, str]) -> dict[str, str]:
    if not wanted.authorization_secret:
        return {}
    return {"authorization": secrets.get(wanted.authorization_secret, "")}
