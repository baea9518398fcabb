"""The config file's sections: their keys, types, defaults, and the rules across them.

`docs/config.md` says what each key is for. A struct's `faults` are told together with those of its
types (`check`).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from engines import registry

MIB = 1024 * 1024

# One model name, a path-safe id. `@` and `/` because Cloudflare's names have them.
ModelId = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9@][A-Za-z0-9@._/-]{0,127}\Z",
        description="letters, digits and @ . _ / - , up to 128, the first no punctuation but @",
    ),
]
# A decimal in text, because a float can't hold a price. At most six places, and at most a million.
Price = Annotated[
    str,
    Meta(
        pattern=r"^([0-9]{1,6}(\.[0-9]{1,6})?|1000000(\.0{1,6})?)\Z",
        description='a decimal in quotes, at most six places and a million, such as "0.10"',
    ),
]
Currency = Annotated[
    str, Meta(pattern=r"^[A-Z]{3}\Z", description='an ISO 4217 code, such as "USD"')
]
Name = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9_][a-z0-9_-]*\Z",
        description="lowercase letters, digits, _ and - , the first no -",
    ),
]
MAX_PORT = 65535
Port = Annotated[int, Meta(ge=1, le=MAX_PORT)]
Seconds = Annotated[float, Meta(gt=0, le=86400)]
Count = Annotated[int, Meta(ge=1)]


class ServerSettings(Struct, frozen=True, kw_only=True):
    """The public listener."""

    host: str = "127.0.0.1"
    port: Port = 8787
    max_body_bytes: Annotated[int, Meta(ge=1024, le=64 * MIB)] = 4 * MIB
    drain_s: Seconds = 30.0


class RelaySettings(Struct, frozen=True, kw_only=True):
    """How long the gateway waits for an engine, in seconds."""

    connect_s: Seconds = 5.0
    start_s: Seconds = 60.0  # for a host to be ready
    first_byte_s: Seconds = 300.0
    idle_s: Seconds = 60.0  # between two chunks of one answer
    keep_alive_s: Seconds = 5.0  # silence on a stream before a comment is sent


class HostSettings(Struct, frozen=True, kw_only=True):
    """How hosts are watched."""

    start_s: Seconds = 120.0
    health_every_s: Seconds = 5.0
    health_timeout_s: Seconds = 10.0
    backoff_first_s: Seconds = 0.5
    backoff_max_s: Seconds = 30.0


class PriceSettings(Struct, frozen=True, kw_only=True):
    """Prices per 1,000,000 tokens."""

    currency: Currency = "USD"
    input: Price = "0"
    cached_input: Price = "0"
    output: Price = "0"


ATTACHED_KEYS = ("url", "upstream_model", "api_key_env", "extra_body")
FOREIGN_KEYS = {
    "openai": ("source", "path", "options"),
    "embedded": ATTACHED_KEYS,
    "fake": (*ATTACHED_KEYS, "source", "path"),
}


class ModelSettings(Struct, frozen=True, kw_only=True):
    """One model: which engine answers for it, with which weights, at which price."""

    id: ModelId
    engine: Literal["embedded", "openai", "fake"]
    owned_by: str = "bulkhead"
    released: datetime.date = datetime.date(1970, 1, 1)
    default_max_tokens: Count = 512
    price: PriceSettings = PriceSettings()
    # engines of our own
    source: str = ""  # a packaged source of weights
    path: str = ""  # or a folder in Hugging Face layout
    options: dict[str, Any] = {}  # the engine's own
    # an attached server
    url: str = ""
    upstream_model: str = ""
    api_key_env: str = ""  # the environment variable that holds its key
    cache_salt: bool = True  # send the tenant's salt, for engines that separate caches by it
    extra_body: dict[str, Any] = {}  # merged into each request to it

    @staticmethod
    def faults(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """Which fields an engine needs."""
        engine = found.get("engine", "")
        for key in FOREIGN_KEYS.get(engine, ()):
            if found.get(key):
                yield key, f'means nothing to an engine "{engine}"; leave it out'
        if engine == "openai":
            if not _is_http_url(str(found.get("url"))):
                yield "url", "an attached engine needs the http(s) URL of its /v1"
        elif engine:
            yield from registry.faults(engine, found)


class FileSettings(Struct, frozen=True, kw_only=True):
    """The config file, as written."""

    name: Name = "bulkhead"
    server: ServerSettings = ServerSettings()
    relay: RelaySettings = RelaySettings()
    hosts: HostSettings = HostSettings()
    models: tuple[ModelSettings, ...] = ()

    @staticmethod
    def faults(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """There is a model, and no two have one name."""
        models = found.get("models") or ()
        if "models" not in found or found["models"] == ():
            yield "models", "no model is configured; add a [[models]] table"
        ids = [model.id if model else None for model in models]
        for i, id in enumerate(ids):
            if id is not None and id in ids[:i]:
                yield f"models[{i}].id", f"{id!r} is used twice"


def _is_http_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # a port that is no port
        return False
