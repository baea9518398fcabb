"""The config's `[[models]]`: which engine answers, how many hosts it has, and at which price."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from msgspec import Struct

from engines import registry
from runtime.config.kinds import (
    Count,
    Currency,
    DayOrNone,
    Json,
    ModelId,
    Number,
    OptionalSecret,
    Price,
    Seconds,
    is_http_url,
)
from runtime.config.lifecycle import Lifecycle
from runtime.config.tls import ClientTls


class PriceSettings(Struct, frozen=True, kw_only=True):
    """Prices per 1,000,000 tokens."""

    currency: Currency = "USD"
    input: Price = "0"
    cached_input: Price = "0"
    output: Price = "0"
    effective_from: DayOrNone = None  # shown in the catalog


HOST_KEYS = ("min_hosts", "max_hosts", "idle_timeout_s", "tokens_per_host", "memory_bytes")
ATTACHED_KEYS = ("url", "upstream_model", "api_key_secret", "extra_body", "tls")
FOREIGN_KEYS = {
    "openai": ("source", "path", "options", *HOST_KEYS),
    "embedded": ATTACHED_KEYS,
    "fake": (*ATTACHED_KEYS, "source", "path"),
}


class ModelSettings(Struct, frozen=True, kw_only=True):
    """One model: which engine answers for it, with which weights, at which price."""

    id: ModelId
    aliases: tuple[ModelId, ...] = ()  # other names, served and billed as this one
    engine: Literal["embedded", "openai", "fake"]
    owned_by: str = "bulkhead"
    released: datetime.date = datetime.date(1970, 1, 1)
    default_max_tokens: Count = 512
    card: str = ""  # the catalog's record: a shipped one's name, or a file beside the config
    lifecycle: Lifecycle = Lifecycle()  # if it says anything, then instead of its card's
    price: PriceSettings = PriceSettings()
    max_waiting: Number = 512  # requests that wait for a host, or for room at one
    max_in_flight: Count = 128  # requests at one host at a time
    # hosts of our own engines
    min_hosts: Number = 0  # kept warm; 0: the first request starts one
    max_hosts: Count = 1
    idle_timeout_s: Seconds = 300.0
    tokens_per_host: Count = 262144  # in flight; more ask for another host
    memory_bytes: Number = 0  # of one host; 0: what the engine estimates
    # engines of our own
    source: str = ""  # a packaged source of weights
    path: str = ""  # or a folder in Hugging Face layout
    options: Json = {}  # the engine's own
    # an attached server
    url: str = ""
    upstream_model: str = ""
    api_key_secret: OptionalSecret = ""  # the secret that holds its key
    tls: ClientTls = ClientTls()
    cache_salt: bool = True  # send the tenant's salt, for engines that separate caches by it
    extra_body: Json = {}  # merged into each request to it

    @staticmethod
    def faults(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """Which fields an engine needs."""
        least, most = found.get("min_hosts", 0), found.get("max_hosts", 1)
        if least is not None and most is not None and least > most:
            yield "min_hosts", "is more than `max_hosts`"
        engine = found.get("engine", "")
        for key in FOREIGN_KEYS.get(engine, ()):
            if found.get(key) not in (None, "", {}):
                yield key, f'means nothing to an engine "{engine}"; leave it out'
        if engine == "openai":
            url = found.get("url", "")
            if url is not None and not is_http_url(url):
                yield "url", "an attached engine needs the http(s) URL of its /v1"
        elif engine:
            yield from registry.faults(engine, found)


def name_faults(models: Sequence[ModelSettings | None]) -> Iterator[tuple[str, str]]:
    """No two models answer to one name, and a successor is another model.

    None stands for what has other faults, a model or a name of one.
    """
    taken: set[str] = set()
    for i, model in enumerate(models):
        for key, name in names_of(model) if model else ():
            if name in taken:
                yield f"models[{i}].{key}", f"{name!r} is used twice"
            taken.add(name)
    may_be_any = any(map(has_nameless, models))
    for i, model in enumerate(models):
        successor = getattr(model and model.lifecycle, "successor", None)
        if successor and model and successor in {name for _, name in names_of(model)}:
            yield f"models[{i}].lifecycle.successor", "is the model itself"
        elif successor and successor not in taken and not may_be_any:
            yield f"models[{i}].lifecycle.successor", f"there is no model {successor!r}"


def names_of(model: Any) -> Iterator[tuple[str, str]]:
    """Each good name that a model answers to, and the key that says so."""
    if model.id is not None:
        yield "id", model.id
    for j, alias in enumerate(model.aliases or ()):
        if alias is not None:
            yield f"aliases[{j}]", alias


def has_nameless(model: Any) -> bool:
    """Whether a model may have a name that isn't known, since there is a fault in it."""
    return model is None or model.id is None or model.aliases is None or None in model.aliases
