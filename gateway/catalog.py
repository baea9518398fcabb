"""The models there are: what a caller may see, and what the relay must know of each."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.errors import ModelNotFound
from gateway.prices import TokenPrices, parse_price
from runtime.models import ModelSettings


@dataclass(frozen=True, slots=True)
class Deployment:
    """One model as it is served: its name, its price, and the way to its engine."""

    id: str
    owned_by: str
    created: int  # unix seconds
    prices: TokenPrices
    default_max_tokens: int
    revision: str
    is_attached: bool
    url: str = ""
    upstream_model: str = ""
    api_key: str = field(default="", repr=False)
    cache_salt: bool = True
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    def listing(self) -> dict[str, Any]:
        """OpenAI's model object."""
        return {
            "id": self.id,
            "object": "model",
            "created": self.created,
            "owned_by": self.owned_by,
        }


class Catalog:
    """All deployments. Unknown and not-yours look the same."""

    def __init__(self, deployments: Iterable[Deployment]) -> None:
        self._by_id = {deployment.id: deployment for deployment in deployments}

    def deployment(self, model: str) -> Deployment:
        """The deployment of a model. Raises ModelNotFound."""
        found = self._by_id.get(model)
        if found is None:
            raise ModelNotFound(
                f"there is no model {model!r} for this key; GET /v1/models lists those there are",
                param="model",
            )
        return found

    def listing(self) -> list[dict[str, Any]]:
        """All models, in the order of the configuration."""
        return [deployment.listing() for deployment in self._by_id.values()]

    def __iter__(self) -> Iterator[Deployment]:
        return iter(self._by_id.values())


def catalog_of(models: Iterable[ModelSettings], secrets: Mapping[str, str]) -> Catalog:
    """The catalog that a configuration describes."""
    return Catalog(_deployment(model, secrets) for model in models)


def _deployment(model: ModelSettings, secrets: Mapping[str, str]) -> Deployment:
    released = datetime.datetime.combine(model.released, datetime.time(), datetime.UTC)
    price = model.price
    return Deployment(
        id=model.id,
        owned_by=model.owned_by,
        created=int(released.timestamp()),
        prices=TokenPrices(
            price.currency,
            parse_price(price.input),
            parse_price(price.cached_input),
            parse_price(price.output),
        ),
        default_max_tokens=model.default_max_tokens,
        revision=model.source or model.path or model.upstream_model,
        is_attached=model.engine == "openai",
        url=model.url.rstrip("/"),
        upstream_model=model.upstream_model or model.id,
        api_key=secrets.get(model.api_key_secret, ""),
        cache_salt=model.cache_salt,
        extra_body=model.extra_body,
    )
