"""The shapes of a model, its prices and its schema, as the catalog tells of them: see `shapes`."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from gateway.openapi.kinds import Count, Day, Decimal, Moment, UnixTime
from runtime.config.cards import Modality, Task


class OpenAIModel(Struct):
    """OpenAI's model object."""

    id: str
    object: Literal["model"]
    created: UnixTime
    owned_by: str
    shutdown_date: Day | None


class Architecture(Struct):
    """OpenRouter's keys."""

    modality: str
    input_modalities: list[Modality]
    output_modalities: list[Modality]
    tokenizer: str | None
    instruct_type: str | None


class FullArchitecture(Architecture):
    """With ours."""

    family: str | None
    parameters: int | str | None


class Pricing(Struct):
    """Per token, as OpenRouter has it."""

    prompt: Decimal
    completion: Decimal
    input_cache_read: Decimal
    request: Decimal


class ModelLimits(Struct):
    """What a request may take."""

    rpm: Count | None
    tpm: Count | None
    concurrent: Count | None
    max_body_bytes: Count
    wall_s: float


class Lifecycle(Struct):
    """Whether it is to go, and what comes after it."""

    status: Literal["alpha", "beta", "stable", "deprecated"]
    deprecated_at: Moment | None
    shutdown_at: Moment | None
    successor: str | None


class License(Struct):
    """Under which terms the weights may be used."""

    spdx: str | None
    url: str | None


class Source(Struct):
    """Where the weights are from; `files`: SHA-256 by name."""

    hf_repo: str | None
    revision: str | None
    package: str | None
    file: str | None
    files: dict[str, str]


class Tokenizer(Struct):
    """Which one, and which file."""

    id: str | None
    sha256: str | None


class Integrity(Struct):
    """Of the page tags and of the weights."""

    policy: Literal["enforce", "observe", "guard", "off"] | None
    weights_digest: str | None


class Model(OpenAIModel):
    """All that is known of a model; null: nobody knows."""

    name: str
    description: str
    canonical_id: str
    alias_of: str | None
    task: Task
    context_length: Count | None
    max_output_tokens: Count | None
    architecture: FullArchitecture
    supported_parameters: list[str]
    supported_endpoints: list[str]
    pricing: Pricing
    pricing_currency: str
    list_pricing: Pricing
    list_pricing_currency: str
    price_version_id: str | None
    effective_from: Moment | None
    limits: ModelLimits
    lifecycle: Lifecycle
    license: License
    source: Source
    quantization: str | None
    backend: str | None
    dtype: str | None
    kv_dtype: str | None
    tokenizer: Tokenizer
    integrity: Integrity


class Health(Struct):
    """Whether it can answer, and how fast it did; `status` is null for a server by URL."""

    status: str | None
    ttft_p50: float | None
    tps_p50: float | None


class HealthyModel(Model):
    """With `view=full`."""

    health: Health


class TopProvider(Struct):
    """OpenRouter's."""

    context_length: Count | None
    max_completion_tokens: Count | None
    is_moderated: bool


class OpenRouterModel(Struct):
    """OpenRouter's model object."""

    id: str
    canonical_slug: str
    hugging_face_id: str | None
    name: str
    created: UnixTime
    description: str
    context_length: Count | None
    architecture: Architecture
    pricing: Pricing
    pricing_currency: str
    top_provider: TopProvider
    per_request_limits: None
    supported_parameters: list[str]
    default_parameters: dict[str, Any]
    expiration_date: Day | None
    alias_target: str | None


class EndpointSchema(Struct):
    """JSON Schemas of what an endpoint takes, answers, and sends as one event of a stream."""

    input: dict[str, Any]
    output: dict[str, Any]
    stream: dict[str, Any]


class ModelSchema(Struct):
    """By endpoint."""

    object: Literal["model.schema"]
    model: str
    endpoints: dict[str, EndpointSchema]


class PriceVersion(Struct, rename={"for_": "for"}):
    """Prices per 1M tokens, from a moment on."""

    id: str
    object: Literal["price_version"]
    model: str
    currency: str
    input: Decimal
    cached_input: Decimal
    output: Decimal
    effective_from: Moment
    created_at: Moment
    reason: str
    in_force: bool
    for_: Literal["everybody", "tenant"]


class PriceList(Struct):
    """All versions, the one that begins last first."""

    object: Literal["list"]
    model: str
    data: list[PriceVersion]
