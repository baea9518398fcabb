"""The config's `[[models]]`: which engine answers, how many hosts it has, and at which price."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from msgspec import Struct

from engines import registry
from engines.trtllm.settings import ENGINE as TENSORRT_LLM, KIND as TRTLLM, URL, TrtSettings
from runtime.config.attached import AttachedServer, Cache, Kind, attached_faults
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
)
from runtime.config.lifecycle import Lifecycle
from runtime.config.limits import RateSettings
from runtime.config.tls import ClientTls

CLASSES = ("input", "cached_input", "output")
ARE_FREE = 'so these tokens are free; if they are meant to be, say "0"'
ALL_FREE = 'if they are meant to be, say { input = "0" }'


class PriceSettings(Struct, frozen=True, kw_only=True):
    """Prices per 1,000,000 tokens."""

    currency: Currency = "USD"
    input: Price = "0"
    cached_input: Price = "0"
    output: Price = "0"
    effective_from: DayOrNone = None  # None: from when it is deployed

    @staticmethod
    def doubts(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """What is left out is free, beside others that cost something; or all of it is."""
        named = [found[key] for key in CLASSES if key in found]
        if named and all(price is not None and not price.strip("0.") for price in named):
            return
        for key in CLASSES:
            if key not in found:
                yield key, f"isn't named, {ARE_FREE}"


class DatedPriceSettings(Struct, frozen=True, kw_only=True):
    """Prices per 1,000,000 tokens from a day on. All of it is named: what was left out is free."""

    effective_from: datetime.date
    currency: Currency
    input: Price
    cached_input: Price
    output: Price


HOST_KEYS = ("min_hosts", "max_hosts", "idle_timeout_s", "tokens_per_host", "memory_bytes")
ATTACHED_KEYS = (
    *("url", "servers", "kind", "cache", "tokenizer", "upstream_model", "api_key_secret"),
    *("extra_body", "tls"),
)
FOREIGN_KEYS = {
    "openai": ("source", "path", "options", "trt", *HOST_KEYS),
    TENSORRT_LLM: ("source", "options", "kind", *HOST_KEYS),
    "embedded": (*ATTACHED_KEYS, "trt"),
    "fake": (*ATTACHED_KEYS, "source", "path", "trt"),
}


class ModelSettings(Struct, frozen=True, kw_only=True):
    """One model: which engine answers for it, with which weights, at which price."""

    id: ModelId
    aliases: tuple[ModelId, ...] = ()  # other names, served and billed as this one
    engine: Literal["embedded", "openai", "tensorrt-llm", "fake"]
    owned_by: str = "bulkhead"
    released: datetime.date = datetime.date(1970, 1, 1)
    default_max_tokens: Count = 512
    card: str = ""  # the catalog's record: a shipped one's name, or a file beside the config
    lifecycle: Lifecycle = Lifecycle()  # if it says anything, then instead of its card's
    price: PriceSettings = PriceSettings()
    prices: tuple[DatedPriceSettings, ...] = ()  # from other days on
    limits: RateSettings = RateSettings()  # of all tenants together
    max_waiting: Number = 512  # requests that wait for a host, or for room at one
    max_in_flight: Count = 128  # requests at one host at a time
    fallback: tuple[ModelId, ...] = ()  # models that answer, in this order, when none here can
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
    servers: tuple[AttachedServer, ...] = ()  # or several that serve the same
    kind: Kind = "openai"
    cache: Cache = ""  # how tenants' cached prefixes are kept apart; "": as its kind does
    tokenizer: str = ""  # a folder with the model's tokenizer, for plain prompts
    upstream_model: str = ""
    api_key_secret: OptionalSecret = ""  # the secret that holds its key
    tls: ClientTls = ClientTls()
    extra_body: Json = {}  # merged into each request to it
    trt: TrtSettings = TrtSettings()  # how TensorRT-LLM serves it

    @property
    def is_attached(self) -> bool:
        """Whether servers answer for it that are reached by URL, and none that we start."""
        return self.engine in ("openai", TENSORRT_LLM)

    @property
    def server_kind(self) -> Kind:
        """What its attached servers are."""
        return TRTLLM if self.engine == TENSORRT_LLM else self.kind

    @property
    def stated_cache(self) -> Cache:
        """What is said of its attached servers' cached prefixes, by whichever key."""
        reuses_none = self.engine == TENSORRT_LLM and not self.trt.block_reuse
        return self.cache or ("off" if reuses_none else "")

    @property
    def tokenizer_folder(self) -> str:
        """Where the tokenizer of an attached server's model lies; "": nobody says."""
        return self.tokenizer or (self.path if self.engine == TENSORRT_LLM else "")

    @property
    def attached(self) -> tuple[AttachedServer, ...]:
        """Its attached servers, as the config names them."""
        if self.servers:
            return self.servers
        is_trt = self.engine == TENSORRT_LLM
        url = self.url or (URL if is_trt else "")
        return (AttachedServer(url=url, guard_url=self.trt.guard_url if is_trt else ""),)

    @property
    def urls(self) -> tuple[str, ...]:
        """Where its attached servers are."""
        return tuple(server.url for server in self.attached)

    @staticmethod
    def doubts(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """A model whose price nobody has thought of. Nobody pays for what "fake" answers."""
        if "price" in found or found.get("engine") == "fake":
            return
        days = [price and price.effective_from for price in found.get("prices") or ()]
        if None in days or any(day <= datetime.datetime.now(datetime.UTC).date() for day in days):
            return
        until = f" until {min(days)}" if days else ""
        yield "price", f"isn't named, so its tokens are free{until}; {ALL_FREE}"

    @staticmethod
    def faults(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """Which fields an engine needs."""
        least, most = found.get("min_hosts", 0), found.get("max_hosts", 1)
        if least is not None and most is not None and least > most:
            yield "min_hosts", "is more than `max_hosts`"
        days = [getattr(found.get("price"), "effective_from", None)]
        for i, price in enumerate(found.get("prices") or ()):
            day = getattr(price, "effective_from", None)
            if day is not None and day in days:
                yield f"prices[{i}].effective_from", f"there is a price from {day} on already"
            days.append(day)
        engine = found.get("engine", "")
        for key in FOREIGN_KEYS.get(engine, ()):
            if found.get(key) not in (None, "", {}):
                yield key, f'means nothing to an engine "{engine}"; leave it out'
        if engine == "openai":
            yield from attached_faults(found)
        elif engine == TENSORRT_LLM:
            default = {} if found.get("servers") else {"url": URL}
            yield from attached_faults(default | found | {"kind": TRTLLM})
            yield from registry.faults(engine, found)
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


def fallback_faults(models: Sequence[ModelSettings | None]) -> Iterator[tuple[str, str]]:
    """A model falls back to others that there are, which cost the same money."""
    known = {model.id: model for model in models if model and model.id}
    may_be_any = any(map(has_nameless, models))
    for i, model in enumerate(models):
        for j, name in enumerate((model.fallback if model else ()) or ()):
            path, other = f"models[{i}].fallback[{j}]", known.get(name or "")
            if model is None or name is None:
                continue
            if name == model.id or name in model.fallback[:j]:
                yield path, "is the model itself" if name == model.id else "is there twice"
            elif other is None and not may_be_any:
                yield path, f"there is no model {name!r} (an alias won't do)"
            elif other and _currency(other) != _currency(model) and _currency(model):
                yield path, f"is priced in {_currency(other)}, this one in {_currency(model)}"


def _currency(model: ModelSettings) -> str | None:
    return getattr(model.price, "currency", None)


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
