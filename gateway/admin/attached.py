"""How models that are served by URL are told: their servers, and what went wrong with each last."""

from __future__ import annotations

from collections.abc import Mapping

from runtime.config.models import ModelSettings
from runtime.deploy.running import Trouble, summed_up


def attached_model(model: ModelSettings, known: Mapping[str, Trouble]) -> dict[str, object]:
    """One model; it is down when all of its servers are. `known`: by URL."""
    urls = [url.rstrip("/") for url in model.urls]
    last = summed_up(urls, known)
    return {
        "id": model.id,
        "state": "attached",
        "url": ", ".join(model.urls),
        "is_down": last.is_down if last else False,
        "reason": last.reason if last else "",
        "failed_at": last.at if last else None,
        "servers": [_server(url, known.get(url)) for url in urls],
    }


def _server(url: str, last: Trouble | None) -> dict[str, object]:
    return {
        "url": url,
        "is_down": last.is_down if last else False,
        "breaker": last.breaker if last else "closed",
        "guard": last.guard if last else "",
        "reason": last.reason if last else "",
        "failed_at": last.at if last else None,
    }
