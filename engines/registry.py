"""Engine names and where their factories live, as text: importing this imports no engine.

Text rather than imports keeps torch out of every process but the host that needs it, and lets
import-linter prove it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from engines.api import Engine, EngineSpec

FACTORIES = {
    "embedded": "engines.embedded.engine:create",
    "fake": "engines.fake:create",
}
OPTION_FAULTS = {
    "embedded": "engines.embedded.config:option_faults",
    "fake": "engines.fake:option_faults",
}


def load(name: str) -> Callable[[EngineSpec], Engine]:
    """The factory of an engine. Raises KeyError for a name that isn't registered."""
    factory: Callable[[EngineSpec], Engine] = _named(FACTORIES[name])
    return factory


def option_faults(name: str, options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is wrong with an engine's options, as (option, reason); cheap, and without torch."""
    check: Callable[[Mapping[str, Any]], list[tuple[str, str]]] = _named(OPTION_FAULTS[name])
    return check(options)


def _named(text: str) -> Any:
    module, _, attribute = text.partition(":")
    return getattr(import_module(module), attribute)
