"""The config file and the environment become frozen settings; every fault comes in one report.

The only module that reads the environment. Each part of the product is handed its own section.
"""

from __future__ import annotations

import datetime
import os
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct

from engines import registry
from runtime.check import Report, convert

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


class Settings(Struct, frozen=True, kw_only=True):
    """Everything a process of ours is told: the file, the state folder, secrets by name."""

    file: FileSettings
    config_path: str
    state_dir: Path
    dev: bool = False
    secrets: dict[str, str] = {}
    root_secret: str = ""

    def __repr__(self) -> str:  # a repr may reach a log; the secrets may not
        return f"Settings(config_path={self.config_path!r}, state_dir={str(self.state_dir)!r})"


class ConfigError(Exception):
    """The configuration can't be used. The message lists every fault with its path."""

    def __init__(self, source: str, report: Report) -> None:
        lines = [
            f"{source} has {len(report.errors)} fault(s):",
            *(f"  - {fault}" for fault in report.errors),
            *(f"  - warning: {fault}" for fault in report.warnings),
        ]
        super().__init__("\n".join(lines))
        self.report = report


def project_folder(config: Path) -> Path:
    """The folder that a config speaks for: its own, or the one above a folder `config`."""
    folder = config.absolute().parent
    return folder.parent if folder.name == "config" else folder


def find_config(start: Path) -> Path | None:
    """`bulkhead.toml` or `config/bulkhead.toml`, in `start` or the nearest folder above it."""
    for folder in (start, *start.parents):
        for candidate in (folder / "bulkhead.toml", folder / "config" / "bulkhead.toml"):
            if candidate.is_file():
                return candidate
    return None


def parse(
    text: bytes | str, source: str, environ: Mapping[str, str] = MappingProxyType({})
) -> tuple[FileSettings, Report]:
    """The file's settings, and the warnings about it. Raises ConfigError with all its faults."""
    report = Report()
    data = _toml(text, report)
    file = convert(FileSettings, data, report) if data is not None else None
    _check_secrets(data or {}, environ, report)
    _check_port(environ, report)
    if file is None or report.errors:
        raise ConfigError(source, report)
    return _with_environment(file, environ), report


def load(
    config: Path | None = None,
    state_dir: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> tuple[Settings, Report]:
    """Settings from arguments, then the environment, then the folder one stands in."""
    env = os.environ if environ is None else environ
    here = cwd or Path.cwd()
    path = config or _path_from(env, "BULKHEAD_CONFIG") or find_config(here)
    if path is not None and not path.is_file():
        report = Report()
        report.error("", "no such file")
        raise ConfigError(str(path), report)
    source = str(path) if path else "the built-in configuration"
    file, report = parse(path.read_bytes() if path else _built_in(), source, env)
    home = project_folder(path) if path else here
    state = state_dir or _path_from(env, "BULKHEAD_STATE") or home / ".bulkhead"
    settings = Settings(
        file=file,
        config_path=str(path.absolute()) if path else "",
        state_dir=state.absolute(),
        dev=env.get("BULKHEAD_DEV") == "1",
        secrets={m.api_key_env: env[m.api_key_env].strip() for m in file.models if m.api_key_env},
        root_secret=env.get("BULKHEAD_ROOT_SECRET", ""),
    )
    return settings, report


def child_environment(settings: Settings, **extra: str) -> dict[str, str]:
    """The environment of a process of ours, so that it loads the same settings."""
    env = dict(os.environ)
    env |= {
        "BULKHEAD_STATE": str(settings.state_dir),
        "BULKHEAD_DEV": "1" if settings.dev else "0",
        "BULKHEAD_HOST": settings.file.server.host,
        "BULKHEAD_PORT": str(settings.file.server.port),
    }
    if settings.config_path:
        env["BULKHEAD_CONFIG"] = settings.config_path
    return env | extra


def export_to_children(settings: Settings) -> None:
    """Put the settings' places into this process's environment, for workers it will spawn."""
    os.environ.update(child_environment(settings))


def _path_from(env: Mapping[str, str], name: str) -> Path | None:
    return Path(env[name]) if env.get(name) else None


def _built_in() -> str:
    return (resources.files("config") / "bulkhead.toml").read_text("utf-8")


def _is_http_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # a port that is no port
        return False


def _toml(text: bytes | str, report: Report) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text if isinstance(text, str) else text.decode())
    except UnicodeDecodeError:
        report.error("", "not text in UTF-8")
    except tomllib.TOMLDecodeError as fault:
        report.error("", f"not valid TOML: {fault}")
    return None


def _check_secrets(data: dict[str, Any], env: Mapping[str, str], report: Report) -> None:
    """Looks at the raw file, so that a missing secret is told even beside other faults."""
    models = data.get("models")
    for i, model in enumerate(models if isinstance(models, list) else []):
        name = model.get("api_key_env") if isinstance(model, dict) else None
        if isinstance(name, str) and name and not env.get(name):
            report.error(f"models[{i}].api_key_env", f"the environment variable {name} is not set")


def _check_port(env: Mapping[str, str], report: Report) -> None:
    text = env.get("BULKHEAD_PORT", "")
    if text and not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_PORT):
        report.error("BULKHEAD_PORT", f"expected a port, found {text[:40]!r}")


def _with_environment(file: FileSettings, env: Mapping[str, str]) -> FileSettings:
    """BULKHEAD_HOST and BULKHEAD_PORT win over the file."""
    server = file.server
    host, port = env.get("BULKHEAD_HOST") or server.host, env.get("BULKHEAD_PORT") or server.port
    server = msgspec.structs.replace(server, host=host, port=int(port))
    return msgspec.structs.replace(file, server=server)
