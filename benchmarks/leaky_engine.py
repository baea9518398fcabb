"""The embedded engine with tenants not kept apart: what a test of isolation must not pass.

The faults live here alone: no setting of the product reaches them (`benchmarks.leaky` does).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from engines.api import Engine, EngineSpec, Request

EVERYBODY = "everybody"
SALT_DROPPED, DOMAIN_NOT_IN_KEY = "salt-dropped", "domain-not-in-key"
FACTORIES = {
    SALT_DROPPED: "benchmarks.leaky_engine:salt_dropped",
    DOMAIN_NOT_IN_KEY: "benchmarks.leaky_engine:domain_not_in_key",
}


class SaltDropped:
    """An engine that is told one domain for all requests; everything else is the engine's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def add(self, request: Request) -> None:
        self._engine.add(replace(request, domain=EVERYBODY))


def salt_dropped(spec: EngineSpec) -> Any:
    """All tenants are one domain, to keys and to page tags: nothing inside can notice."""
    from engines.embedded.engine import create

    return SaltDropped(create(spec))


def domain_not_in_key(spec: EngineSpec) -> Engine:
    """Keys of cached pages forget whose they are; tags don't. So the check of the tags catches it:
    with `integrity = "off"` it is a leak, else an abort.
    """
    from engines.embedded import engine, prefix

    right = prefix.content_key

    def wrong(scope: Any, *rest: Any) -> bytes:
        return right(replace(scope, domain=EVERYBODY), *rest)

    for name, module in list(sys.modules.items()):
        if name.startswith("engines.embedded.") and hasattr(module, "content_key"):
            module.content_key = wrong  # type: ignore[attr-defined]
    return engine.create(spec)
