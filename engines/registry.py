"""Engine names and where their factories live, as text: importing this imports no engine.

Text rather than imports keeps torch out of every process but the host that needs it, and lets
import-linter prove it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from engines.api import Engine, EngineSpec

FACTORIES = {
    "embedded": "engines.embedded.engine:create",
    "fake": "engines.fake:create",
}


def load(name: str) -> Callable[[EngineSpec], Engine]:
    """The factory of an engine. Raises KeyError for a name that isn't registered."""
    module, _, attribute = FACTORIES[name].partition(":")
    factory: Callable[[EngineSpec], Engine] = getattr(import_module(module), attribute)
    return factory
