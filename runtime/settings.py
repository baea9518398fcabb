"""The config file and the environment become frozen settings; every fault comes in one report.

The only module that reads the environment. Each part of the product is handed its own section.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Struct

from runtime.check import Report, convert
from runtime.deployments import Origin
from runtime.kinds import MAX_PORT
from runtime.sections import FileSettings


class Settings(Struct, frozen=True, kw_only=True):
    """Everything a process of ours is told: the file, the state folder, secrets by name."""

    file: FileSettings
    config_path: str
    state_dir: Path
    env: str = ""  # the environment of the file that was chosen; empty: its top
    variables: tuple[str, ...] = ()  # "NAME:value", as the command line gave them
    text: str = ""  # of the file, which may be another by now
    dev: bool = False
    secrets: dict[str, str] = {}
    root_secret: str = ""
    admin_key: str = ""  # empty: the state folder's

    @property
    def origin(self) -> Origin:
        """How the text is to be read again."""
        return Origin(config_path=self.config_path, env=self.env, variables=self.variables)

    def __repr__(self) -> str:  # a repr may reach a log; the secrets may not
        return f"Settings(config_path={self.config_path!r}, state_dir={str(self.state_dir)!r})"


class Caller(Struct, frozen=True, kw_only=True):
    """What the environment says to a command that calls a running Bulkhead; "" where nothing."""

    url: str = ""
    api_key: str = ""
    admin_url: str = ""
    admin_key: str = ""

    def __repr__(self) -> str:
        return f"Caller(url={self.url!r}, admin_url={self.admin_url!r})"


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
    _check_ports(environ, report)
    if file is None or report.errors:
        raise ConfigError(source, report)
    return _with_environment(file, environ), report


def load(  # noqa: PLR0913 - one argument an option, and two for tests
    config: Path | None = None,
    state_dir: Path | None = None,
    *,
    env: str | None = None,
    variables: tuple[str, ...] | None = None,
    dev: bool | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> tuple[Settings, Report]:
    """Settings from arguments, then the environment, then the folder one stands in."""
    environ = os.environ if environ is None else environ
    here = cwd or Path.cwd()
    path = config or _path_from(environ, "BULKHEAD_CONFIG") or find_config(here)
    home = project_folder(path) if path else here
    chosen = environ.get("BULKHEAD_ENV", "") if env is None else env
    folder = f".bulkhead-{chosen}" if chosen else ".bulkhead"
    state = state_dir or _path_from(environ, "BULKHEAD_STATE") or home / folder
    origin = Origin(
        config_path=str(path.absolute()) if path else "",
        env=chosen,
        variables=_variables_from(environ) if variables is None else variables,
    )
    text = _read(path) if path else _built_in()
    return load_text(text, origin, state, dev=dev, environ=environ)


def load_text(
    text: bytes | str,
    origin: Origin,
    state_dir: Path,
    *,
    dev: bool | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[Settings, Report]:
    """Settings from a text at hand, such as a deployed one. Its secrets are looked up now."""
    environ = os.environ if environ is None else environ
    source = origin.config_path or "the built-in configuration"
    file, report = parse(text, source, environ)
    settings = Settings(
        file=file,
        config_path=origin.config_path,
        state_dir=state_dir.absolute(),
        env=origin.env,
        variables=origin.variables,
        text=text if isinstance(text, str) else text.decode(),
        dev=environ.get("BULKHEAD_DEV") == "1" if dev is None else dev,
        secrets={n: environ[n].strip() for m in file.models if (n := m.api_key_secret)},
        root_secret=environ.get("BULKHEAD_ROOT_SECRET", ""),
        admin_key=environ.get("BULKHEAD_ADMIN_KEY", ""),
    )
    return settings, report


def caller(environ: Mapping[str, str] | None = None) -> Caller:
    """How to call a running Bulkhead, as the environment says."""
    environ = os.environ if environ is None else environ
    return Caller(
        url=environ.get("BULKHEAD_URL", "").rstrip("/"),
        api_key=environ.get("BULKHEAD_API_KEY", "").strip(),
        admin_url=environ.get("BULKHEAD_ADMIN_URL", "").rstrip("/"),
        admin_key=environ.get("BULKHEAD_ADMIN_KEY", "").strip(),
    )


def child_environment(settings: Settings, **extra: str) -> dict[str, str]:
    """The environment of a process of ours, so that it loads the same settings."""
    env = dict(os.environ)
    env |= {
        "BULKHEAD_STATE": str(settings.state_dir),
        "BULKHEAD_ENV": settings.env,
        "BULKHEAD_VARS": json.dumps(settings.variables),
        "BULKHEAD_DEV": "1" if settings.dev else "0",
        "BULKHEAD_HOST": settings.file.server.host,
        "BULKHEAD_PORT": str(settings.file.server.port),
        "BULKHEAD_ADMIN_HOST": settings.file.admin.host,
        "BULKHEAD_ADMIN_PORT": str(settings.file.admin.port),
    }
    if settings.config_path:
        env["BULKHEAD_CONFIG"] = settings.config_path
    return env | extra


def export_to_children(settings: Settings) -> None:
    """Put the settings' places into this process's environment, for workers it will spawn."""
    os.environ.update(child_environment(settings))


def _path_from(env: Mapping[str, str], name: str) -> Path | None:
    return Path(env[name]) if env.get(name) else None


def _variables_from(env: Mapping[str, str]) -> tuple[str, ...]:
    """What `child_environment` said of --var."""
    return tuple(json.loads(env.get("BULKHEAD_VARS") or "[]"))


def _read(path: Path) -> bytes:
    if not path.is_file():
        report = Report()
        report.error("", "no such file")
        raise ConfigError(str(path), report)
    return path.read_bytes()


def _built_in() -> str:
    return (resources.files("config") / "bulkhead.toml").read_text("utf-8")


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
        name = model.get("api_key_secret") if isinstance(model, dict) else None
        if isinstance(name, str) and name and not env.get(name):
            report.error(
                f"models[{i}].api_key_secret", f"the environment variable {name} is not set"
            )


def _check_ports(env: Mapping[str, str], report: Report) -> None:
    for name, least in (("BULKHEAD_PORT", 1), ("BULKHEAD_ADMIN_PORT", 0)):
        text = env.get(name, "")
        if text and not (text.isascii() and text.isdigit() and least <= int(text) <= MAX_PORT):
            report.error(name, f"expected a port, found {text[:40]!r}")


def _with_environment(file: FileSettings, env: Mapping[str, str]) -> FileSettings:
    """What the environment says of the listeners wins over the file."""
    server, admin = file.server, file.admin
    return msgspec.structs.replace(
        file,
        server=msgspec.structs.replace(
            server,
            host=env.get("BULKHEAD_HOST") or server.host,
            port=int(env.get("BULKHEAD_PORT") or server.port),
        ),
        admin=msgspec.structs.replace(
            admin,
            host=env.get("BULKHEAD_ADMIN_HOST") or admin.host,
            port=int(env.get("BULKHEAD_ADMIN_PORT") or admin.port),
        ),
    )
