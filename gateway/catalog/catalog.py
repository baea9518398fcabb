"""The models there are: what a caller may use, and what the relay must know of each."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gateway.catalog.facts import ModelFacts, lifecycle_of
from gateway.errors import ModelNotFound
from gateway.prices import TokenPrices, parse_price
from runtime.config.attached import KINDS, Cache, Habits
from runtime.config.lifecycle import Lifecycle, midnight
from runtime.config.models import DatedPriceSettings, ModelSettings, PriceSettings
from runtime.config.tenants import ContractSettings
from runtime.config.tls import ClientTls
from runtime.tls import certificates

US = 1_000_000
PLAIN = ClientTls()


@dataclass(frozen=True, slots=True)
class Server:
    """One server attached by URL that answers for a model."""

    url: str
    api_key: str = field(default="", repr=False)
    max_in_flight: int = 128
    weight: int = 1
    tls: ClientTls = field(default_factory=ClientTls)  # absolute paths
    guard_url: str = ""  # where its launcher tells of the guard in it
    guard_key: str = field(default="", repr=False)  # what is shown there


@dataclass(frozen=True, slots=True)
class Deployment:
    """One model as it is served: its names, its price, and the way to its engine."""

    id: str
    owned_by: str
    created: int  # unix seconds
    prices: TokenPrices
    default_max_tokens: int
    revision: str
    is_attached: bool
    max_waiting: int = 512  # requests that wait for a place
    max_in_flight: int = 128  # requests at one place at a time
    min_hosts: int = 0  # of our own, kept warm
    fallbacks: tuple[str, ...] = ()  # ids of models that answer when this one can't
    servers: tuple[Server, ...] = ()  # attached ones
    kind: str = "openai"
    cache: Cache = ""
    tokenizer: str = ""  # a folder; plain prompts are sent as chats of its token ids
    upstream_model: str = ""
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    facts: ModelFacts = field(default_factory=ModelFacts, repr=False)
    notices: Mapping[bytes, bytes] = field(default_factory=dict)  # headers of its answers

    @property
    def habits(self) -> Habits:
        """What is known of an attached server's kind."""
        return KINDS[self.kind]

    @property
    def is_salted(self) -> bool:
        """Whether an attached server is sent a salt of each tenant's own."""
        cache = self.cache or self.habits.cache or "salted"
        return cache == "salted" and "cache_salt" not in self.extra_body

    def is_for(self, models: frozenset[str] | None) -> bool:
        """Whether a list names it, by any of its names. None lists all."""
        return models is None or not models.isdisjoint((self.id, *self.aliases))

    def is_served_at(self, now_us: int) -> bool:
        """Whether it hasn't been shut down; microseconds UTC."""
        return not self.lifecycle.is_shut_at(now_us / US)


class Catalog:
    """All deployments. Unknown and not-yours look the same."""

    def __init__(self, deployments: Iterable[Deployment]) -> None:
        self._all = tuple(deployments)
        self._by_name = {name: one for one in self._all for name in (one.id, *one.aliases)}

    def deployment(
        self, model: str, now_us: int, models: frozenset[str] | None = None
    ) -> Deployment:
        """The deployment of a model, by its id or an alias, if `models` lists it.

        Raises ModelNotFound.
        """
        found = self._by_name.get(model)
        if found is None or not found.is_for(models):
            raise ModelNotFound(
                f"there is no model {model!r} for this key; GET /v1/models lists those there are",
                param="model",
            )
        if not found.is_served_at(now_us):
            raise _shut(model, found.lifecycle)
        return found

    def fallbacks(
        self, deployment: Deployment, now_us: int, models: frozenset[str] | None = None
    ) -> tuple[Deployment, ...]:
        """Those that `models` lists and that may answer in this one's place, in order."""
        if not deployment.fallbacks:  # as with most models
            return ()
        named = (self._by_name.get(name) for name in deployment.fallbacks)
        found = (one for one in named if one is not None)
        return tuple(one for one in found if one.is_served_at(now_us) and one.is_for(models))

    def served_at(self, now_us: int, models: frozenset[str] | None = None) -> list[Deployment]:
        """Those that `models` lists and that aren't shut down, in the configuration's order."""
        return [one for one in self._all if one.is_served_at(now_us) and one.is_for(models)]

    def __iter__(self) -> Iterator[Deployment]:
        return iter(self._all)


def catalog_of(
    models: Iterable[ModelSettings],
    secrets: Mapping[str, str],
    facts: Mapping[str, ModelFacts] | None = None,
    folder: Path = Path(),
) -> Catalog:
    """The catalog that a configuration describes. Without `facts`, no more is known of a model.

    Relative paths start at `folder`.
    """
    known = facts or {}
    return Catalog(
        _deployment(model, secrets, known.get(model.id, ModelFacts()), folder) for model in models
    )


def _deployment(
    model: ModelSettings, secrets: Mapping[str, str], facts: ModelFacts, folder: Path
) -> Deployment:
    lifecycle = lifecycle_of(model, facts)
    return Deployment(
        id=model.id,
        owned_by=model.owned_by,
        created=int(midnight(model.released).timestamp()),
        prices=prices_of(model.price),
        default_max_tokens=model.default_max_tokens,
        revision=model.source or model.path or model.upstream_model,
        is_attached=model.is_attached,
        max_waiting=model.max_waiting,
        max_in_flight=model.max_in_flight,
        min_hosts=model.min_hosts,
        fallbacks=model.fallback,
        servers=_servers(model, secrets, folder) if model.is_attached else (),
        kind=model.server_kind,
        cache=model.stated_cache,
        tokenizer=_tokenizer(model, folder),
        upstream_model=model.upstream_model or model.id,
        extra_body=model.extra_body,
        aliases=model.aliases,
        lifecycle=lifecycle,
        facts=facts,
        notices=notices_of(lifecycle),
    )


def _tokenizer(model: ModelSettings, folder: Path) -> str:
    """Where it lies, if plain prompts need it to be kept apart by salts; "": not here.

    One that is named is there, or it is a fault; a checkpoint may lie with its server alone.
    """
    habits = KINDS[model.server_kind]
    is_needed = habits.takes_ids and (model.stated_cache or habits.cache) == "salted"
    if not (model.is_attached and is_needed and model.tokenizer_folder):
        return ""
    found = folder / model.tokenizer_folder
    return str(found) if model.tokenizer or (found / "tokenizer.json").is_file() else ""


def _servers(model: ModelSettings, secrets: Mapping[str, str], folder: Path) -> tuple[Server, ...]:
    """Those that answer for a model; what one leaves out is as the model says."""
    return tuple(
        Server(
            url=server.url.rstrip("/"),
            api_key=secrets.get(server.api_key_secret or model.api_key_secret, ""),
            max_in_flight=server.max_in_flight or model.max_in_flight,
            weight=server.weight,
            tls=certificates.absolute(server.tls if server.tls != PLAIN else model.tls, folder),
            guard_url=server.guard_url.rstrip("/") if model.trt.guard else "",
            guard_key=secrets.get(model.trt.guard_secret, ""),
        )
        for server in model.attached
    )


def prices_of(price: PriceSettings | DatedPriceSettings | ContractSettings) -> TokenPrices:
    """A price as the config writes it, as integers."""
    return TokenPrices(
        price.currency,
        parse_price(price.input),
        parse_price(price.cached_input),
        parse_price(price.output),
    )


def notices_of(lifecycle: Lifecycle) -> dict[bytes, bytes]:
    """The headers that tell clients of a model's end: RFC 9745 and RFC 8594. {} if none is set."""
    headers = {}
    if lifecycle.deprecated_at:
        since = int(midnight(lifecycle.deprecated_at).timestamp())
        headers[b"deprecation"] = b"@%d" % since
    if lifecycle.shutdown_at:
        headers[b"sunset"] = _http_date(lifecycle.shutdown_at)
    if headers and lifecycle.successor:
        url = f"/v1/models/{quote(lifecycle.successor, safe='/@')}"
        headers[b"link"] = f'<{url}>; rel="successor-version"'.encode()
    return headers


def _http_date(day: datetime.date) -> bytes:
    return format_datetime(midnight(day), usegmt=True).encode()


def _shut(model: str, lifecycle: Lifecycle) -> ModelNotFound:
    instead = f"; use {lifecycle.successor!r} instead" if lifecycle.successor else ""
    return ModelNotFound(
        f"the model {model!r} was shut down on {lifecycle.shutdown_at}{instead}", param="model"
    )
