"""A model as `GET /v1/models` tells of it: OpenAI's object, OpenRouter's, or the whole record.

A key that nothing is known for is null, in every view: none is guessed.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.catalog.catalog import US, Deployment
from gateway.prices import Priced, TokenPrices, format_pico
from gateway.schema import ENDPOINTS, supported_parameters
from runtime.config.cards import Architecture
from runtime.config.lifecycle import midnight
from runtime.config.limits import LimitSettings

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shown:
    """One model under one of its names, for one caller."""

    deployment: Deployment
    name: str  # its id, or an alias
    price: Priced  # the caller's
    list_price: Priced
    limits: LimitSettings
    now_us: int


def openai(shown: Shown) -> Record:
    """OpenAI's model object."""
    one = shown.deployment
    shutdown = one.lifecycle.shutdown_at
    return {
        "id": shown.name,
        "object": "model",
        "created": one.created,
        "owned_by": one.owned_by,
        "shutdown_date": shutdown.isoformat() if shutdown else None,
    }


def whole(shown: Shown) -> Record:
    """All that is known and doesn't change by the minute."""
    one, facts, card = shown.deployment, shown.deployment.facts, shown.deployment.facts.card
    return openai(shown) | {
        "name": card.name or one.id,
        "description": card.description,
        "canonical_id": one.id,
        "alias_of": one.id if shown.name != one.id else None,
        "task": card.task,
        "context_length": facts.context_length,
        "max_output_tokens": facts.max_output_tokens,
        "architecture": _architecture(card.architecture)
        | {
            "family": card.architecture.family or None,
            "parameters": card.architecture.parameters or None,
        },
        "supported_parameters": supported_parameters(),
        "supported_endpoints": list(ENDPOINTS),
        "pricing": _pricing(shown.price.prices),
        "pricing_currency": shown.price.prices.currency,
        "list_pricing": _pricing(shown.list_price.prices),
        "list_pricing_currency": shown.list_price.prices.currency,
        "price_version_id": shown.price.version_id,
        "effective_from": rfc3339(shown.price.since),
        "limits": _limits(shown.limits),
        "lifecycle": _lifecycle(shown),
        "license": _known(spdx=card.license.spdx, url=card.license.url),
        "source": _source(one),
        "quantization": facts.engine.quantization or card.quantization or None,
        "backend": facts.engine.backend or None,
        "dtype": facts.engine.dtype or card.dtype or None,
        "kv_dtype": facts.engine.kv_dtype or None,
        "tokenizer": _known(id=card.tokenizer) | {"sha256": facts.files.get("tokenizer.json")},
        "integrity": {
            "policy": facts.engine.integrity or None,
            "weights_digest": _weights_digest(facts.files),
        },
    }


def openrouter(shown: Shown) -> Record:
    """OpenRouter's model object. Its clients read prices as USD: see `pricing_currency`."""
    one, facts, card = shown.deployment, shown.deployment.facts, shown.deployment.facts.card
    shutdown = one.lifecycle.shutdown_at
    return {
        "id": shown.name,
        "canonical_slug": one.id,
        "hugging_face_id": card.source.repo or None,
        "name": card.name or one.id,
        "created": one.created,
        "description": card.description,
        "context_length": facts.context_length,
        "architecture": _architecture(card.architecture),
        "pricing": _pricing(shown.price.prices),
        "pricing_currency": shown.price.prices.currency,
        "top_provider": {
            "context_length": facts.context_length,
            "max_completion_tokens": facts.max_output_tokens,
            "is_moderated": False,
        },
        "per_request_limits": None,
        "supported_parameters": supported_parameters(),
        "default_parameters": {},
        "expiration_date": shutdown.isoformat() if shutdown else None,
        "alias_target": one.id if shown.name != one.id else None,
    }


def _pricing(prices: TokenPrices) -> dict[str, str]:
    """OpenRouter's keys: exact decimals, per token."""
    return {
        "prompt": format_pico(prices.input),
        "completion": format_pico(prices.output),
        "input_cache_read": format_pico(prices.cached_input),
        "request": "0",
    }


def _architecture(card: Architecture) -> Record:
    takes, gives = "+".join(card.input_modalities), "+".join(card.output_modalities)
    return {
        "modality": f"{takes}->{gives}",
        "input_modalities": list(card.input_modalities),
        "output_modalities": list(card.output_modalities),
        "tokenizer": card.tokenizer or None,
        "instruct_type": card.instruct_type or None,
    }


def _limits(limits: LimitSettings) -> Record:
    """No rate is limited yet; what a request may take is."""
    return {
        "rpm": None,
        "tpm": None,
        "concurrent": None,
        "max_body_bytes": limits.max_body_bytes,
        "wall_s": limits.wall_s,
    }


def _lifecycle(shown: Shown) -> Record:
    life = shown.deployment.lifecycle
    return {
        "status": life.status_at(shown.now_us / US),
        "deprecated_at": _moment(life.deprecated_at),
        "shutdown_at": _moment(life.shutdown_at),
        "successor": life.successor or None,
    }


def _moment(day: datetime.date | None) -> str | None:
    return midnight(day).strftime("%Y-%m-%dT%H:%M:%SZ") if day else None


def rfc3339(us: int | None) -> str | None:
    """A time in microseconds UTC, cut to whole seconds."""
    if us is None:
        return None
    moment = datetime.datetime.fromtimestamp(us // US, datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _source(one: Deployment) -> Record:
    source = one.facts.card.source
    known = _known(
        hf_repo=source.repo, revision=source.revision, package=source.package, file=source.file
    )
    return known | {"files": {name: f"sha256:{hex}" for name, hex in one.facts.files.items()}}


def _known(**texts: str) -> Record:
    return {name: text or None for name, text in texts.items()}


def _weights_digest(files: Mapping[str, str]) -> str | None:
    """Of the one file that holds the weights which are served."""
    found = [digest for name, digest in files.items() if name.endswith(".safetensors")]
    return f"sha256:{found[0]}" if len(found) == 1 else None
