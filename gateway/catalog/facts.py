"""What is known of a model: its card, the engine that serves it, and the files of its weights.

What nobody knows is None. The context of our own engines is what the engine will really take; that
of a server attached by URL is what its card says, or what TensorRT-LLM is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from msgspec import to_builtins

from engines import registry
from engines.api import EngineError, EngineFacts
from runtime import weights
from runtime.config.cards import Card, card_of
from runtime.config.lifecycle import Lifecycle
from runtime.config.models import ModelSettings
from runtime.config.report import Report
from runtime.settings import Settings

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One model's. Lengths are in tokens; `files` are the weights' by SHA-256 in hex."""

    card: Card = field(default_factory=Card)
    context_length: int | None = None
    max_output_tokens: int | None = None
    engine: EngineFacts = field(default_factory=EngineFacts)
    files: Mapping[str, str] = field(default_factory=dict)


def facts_of(settings: Settings) -> Mapping[str, ModelFacts]:
    """The facts of all configured models, by id. A card that can't be read counts as none."""
    report = Report()
    folder = Path(settings.config_path).parent if settings.config_path else None
    found = {}
    for model in settings.file.models:
        card = card_of(model.card, model.source, folder, report, f"{model.id}.card")
        found[model.id] = _facts(settings, model, card)
    for fault in report.errors:  # a deploy refuses them; a file may have changed since
        log.warning("card_not_read", fault=str(fault))
    return found


def _facts(settings: Settings, model: ModelSettings, card: Card) -> ModelFacts:
    if model.engine not in registry.FACTS:
        return ModelFacts(card, card.context_length or None, card.max_output_tokens or None)
    folder = weights.folder(settings, model)
    try:
        if model.is_attached:
            engine = registry.facts(model.engine, model.path, to_builtins(model.trt))
        else:
            engine = registry.facts(model.engine, str(folder), model.options)
    except EngineError:  # its host won't start either, and says why
        engine = EngineFacts()
    context = engine.context_length or card.context_length or None
    return ModelFacts(
        card=card,
        context_length=context,
        max_output_tokens=card.max_output_tokens or context,
        engine=engine,
        files=weights.digests(folder) if model.engine == "embedded" else {},
    )


def lifecycle_of(model: ModelSettings, facts: ModelFacts) -> Lifecycle:
    """What the config says of a model's end; else what its card says."""
    return model.lifecycle if model.lifecycle != Lifecycle() else facts.card.lifecycle
