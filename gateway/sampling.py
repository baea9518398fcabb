"""Which requests get a line in the log: all that failed, and a share of the others."""

from __future__ import annotations

import zlib

from runtime.config.observability import ObservabilitySettings


def is_told(settings: ObservabilitySettings, request_id: str, *, failed: bool) -> bool:
    """The same for one id every time and everywhere, so that a request is told whole or not."""
    if not settings.enabled or failed or settings.head_sampling_rate >= 1:
        return settings.enabled
    return zlib.crc32(request_id.encode()) < settings.head_sampling_rate * 2**32
