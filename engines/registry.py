"""Engine names and where their factories live, as text: importing this imports no engine.

Text rather than imports keeps torch out of every process but the host that needs it, and lets
import-linter prove it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

from engines.api import Engine, EngineFacts, EngineSpec, FaultKind, PromptEncoder

Tell = Callable[[str, int, int], None]  # a stage, how much of it is done, and of how much
FACTORIES = {
    "embedded": "engines.embedded.engine:create",
    "fake": "engines.fake:create",
}
FAULTS = {
    "embedded": "engines.embedded.config:faults",
    "fake": "engines.fake:faults",
    "tensorrt-llm": "engines.trtllm.checks:faults",
}
FOOTPRINTS = {
    "embedded": "engines.embedded.footprint:memory_bytes",
    "fake": "engines.fake:memory_bytes",
}
FACTS = {
    "embedded": "engines.embedded.facts:facts",
    "fake": "engines.fake:facts",
    "tensorrt-llm": "engines.trtllm.facts:facts",
}
INJECTORS = {
    "embedded": "engines.embedded.faults:plant",
}
FAULT_KINDS = {
    "embedded": "engines.embedded.faults:kinds",
}
EVALUATORS = {
    "embedded": "engines.embedded.evaluation.evaluate:evaluate",
}
PROMPT_ENCODER = "engines.prompt_ids:load"


def load(name: str) -> Callable[[EngineSpec], Engine]:
    """The factory of an engine. Raises KeyError for a name that isn't registered."""
    factory: Callable[[EngineSpec], Engine] = _named(FACTORIES[name])
    return factory


def faults(name: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is wrong with an engine's settings, as (key, reason); cheap, and without torch."""
    check: Callable[[Mapping[str, Any]], Iterator[tuple[str, str]]] = _named(FAULTS[name])
    return check(settings)


def memory_bytes(name: str, path: str, options: Mapping[str, Any]) -> int:
    """What one engine's process takes at most, as its package estimates; without torch."""
    estimate: Callable[[str, Mapping[str, Any]], int] = _named(FOOTPRINTS[name])
    return estimate(path, options)


def facts(name: str, path: str, options: Mapping[str, Any]) -> EngineFacts:
    """What an engine is as configured, without building it. Raises EngineError."""
    tell: Callable[[str, Mapping[str, Any]], EngineFacts] = _named(FACTS[name])
    return tell(path, options)


def plant_fault(name: str, engine: Engine, kind: str) -> str:
    """Plant a fault in a live engine, between two steps: what was done. Raises EngineError.

    Raises KeyError for an engine that none can be planted in.
    """
    plant: Callable[[Engine, str], str] = _named(INJECTORS[name])
    return plant(engine, kind)


def fault_kinds(name: str) -> list[FaultKind]:
    """The faults that can be planted in an engine; none for one that has no way to."""
    if name not in FAULT_KINDS:
        return []
    kinds: Callable[[], list[FaultKind]] = _named(FAULT_KINDS[name])
    return kinds()


def evaluator(name: str) -> Callable[[Mapping[str, Any], Tell], dict[str, Any]]:
    """What compares the kinds of weights and KV that an engine can serve.

    Raises KeyError for an engine that has none.
    """
    found: Callable[[Mapping[str, Any], Tell], dict[str, Any]] = _named(EVALUATORS[name])
    return found


def prompt_encoder(folder: str) -> PromptEncoder:
    """What makes token ids of plain prompts, for a folder with a `tokenizer.json`.

    Blocks every thread for a part of a second. Raises EngineError.
    """
    load: Callable[[str], PromptEncoder] = _named(PROMPT_ENCODER)
    return load(folder)


def _named(text: str) -> Any:
    module, _, attribute = text.partition(":")
    return getattr(import_module(module), attribute)
