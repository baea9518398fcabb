"""The config file and the environment become frozen settings; every fault comes in one report.

The only module that reads the environment. Each part of the product is handed its own section.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import msgspec

from runtime import config_file
from runtime.config import dev_vars, environments, overrides
from runtime.config.place import Caller, Place, find_config, project_folder
from runtime.config.report import Report
from runtime.config.secret_values import KnownSecret, known, resolve, sources
from runtime.config.vault import Vault
from runtime.config_file import Given, Parsed
from runtime.configured import (
    ConfigError,
    Settings,
    built_in,
    check_environment,
    parse,
    read,
    text_of,
)
from runtime.deployments import Origin

__all__ = ["ConfigError", "Settings", "parse", "text_of"]


def locate(
    config: Path | None = None,
    state_dir: Path | None = None,
    *,
    env: str | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Place:
    """Which installation is meant, whatever is wrong with its file. Raises ConfigError.

    Arguments win over the environment, and that over the folder one stands in.
    """
    environ = os.environ if environ is None else environ
    here = cwd or Path.cwd()
    path = config or _path_from(environ, "BULKHEAD_CONFIG") or find_config(here)
    chosen = environ.get("BULKHEAD_ENV", "") if env is None else env
    check_environment(read(path) if path else built_in(), chosen, path)
    home = project_folder(path) if path else here
    folder = f".bulkhead-{chosen}" if chosen else ".bulkhead"
    state = state_dir or _path_from(environ, "BULKHEAD_STATE") or home / folder
    return _place(str(path.absolute()) if path else "", state, chosen, environ)


def environment_names(
    config: Path | None = None, *, environ: Mapping[str, str] | None = None
) -> list[str]:
    """The environments that the config file has, whatever is wrong with it. Raises ConfigError."""
    environ = os.environ if environ is None else environ
    path = config or _path_from(environ, "BULKHEAD_CONFIG") or find_config(Path.cwd())
    data = config_file.toml(read(path) if path else built_in(), Report())
    return environments.names(data or {})


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
    """The settings of an installation, from its file as it is now. Raises ConfigError."""
    environ = os.environ if environ is None else environ
    place = locate(config, state_dir, env=env, environ=environ, cwd=cwd)
    origin = Origin(
        config_path=place.config_path,
        env=place.env,
        variables=_variables_from(environ) if variables is None else variables,
    )
    text = text_of(place)
    is_dev = environ.get("BULKHEAD_DEV") == "1" if dev is None else dev
    chosen = None if env is None and "BULKHEAD_ENV" not in environ else place.env
    parse = partial(config_file.parse, text, chosen, folder=place.folder)
    return _settings(parse, text, origin, place, is_dev, environ)


def peek(
    config: Path | None = None,
    state_dir: Path | None = None,
    *,
    env: str | None = None,
    variables: tuple[str, ...] = (),
    needs: str = "",
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """What the file says, for who won't serve by it: no secret is needed, and `.dev.vars` count.

    But for those that a key called `needs` names.
    """
    environ = os.environ if environ is None else environ
    place = locate(config, state_dir, env=env, environ=environ)
    origin = Origin(config_path=place.config_path, env=place.env, variables=variables)
    text = text_of(place)

    def parse(given: Given) -> Parsed:
        parsed = config_file.parse(text, place.env, given)
        for name, paths in list(parsed.secrets.items()):
            if not (needs and any(path.endswith(f".{needs}") for path in paths)):
                del parsed.secrets[name]
        return parsed

    return _settings(parse, text, origin, place, True, environ)[0]


def load_text(
    text: bytes | str,
    origin: Origin,
    state_dir: Path,
    *,
    dev: bool | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[Settings, Report]:
    """Settings from a text at hand, such as a deployed one. Its secrets are looked up now.

    The files that it names aren't looked at: they were when it was deployed.
    """
    environ = os.environ if environ is None else environ
    is_dev = environ.get("BULKHEAD_DEV") == "1" if dev is None else dev
    place = _place(origin.config_path, state_dir, origin.env, environ)
    parse = partial(config_file.parse, text, place.env)
    return _settings(parse, text, origin, place, is_dev, environ)


def _place(config_path: str, state_dir: Path, env: str, environ: Mapping[str, str]) -> Place:
    return Place(
        config_path=config_path,
        state_dir=state_dir.absolute(),
        env=env,
        root_secret=environ.get("BULKHEAD_ROOT_SECRET", ""),
        store_url=environ.get("BULKHEAD_STORE_URL", ""),
        admin_key=environ.get("BULKHEAD_ADMIN_KEY", ""),
    )


def _settings(
    parse: Callable[..., Parsed],
    text: bytes | str,
    origin: Origin,
    place: Place,
    dev: bool,
    environ: Mapping[str, str],
) -> tuple[Settings, Report]:
    found = Report()
    local = dev_vars.read(place.project, place.env, found) if dev else {}
    given = Given(dict(_pair(text) for text in origin.variables), local)
    parsed = parse(given=given)
    report = parsed.report
    report.errors += found.errors
    vault = Vault(place.state_dir, place.root_secret)
    secrets = resolve(_needed(parsed.secrets, place), sources(environ, local, vault), report)
    overrides.check(environ, report)
    if parsed.file is None or report.errors:
        raise ConfigError(place.source, report)
    settings = Settings(
        **msgspec.structs.asdict(place),
        file=overrides.apply(parsed.file, environ),
        variables=origin.variables,
        text=text if isinstance(text, str) else text.decode(),
        dev=dev,
        secrets=secrets,
    )
    return settings, report


def in_environment(name: str) -> str | None:
    """The value of a variable that a command was given the name of."""
    return os.environ.get(name)


def _needed(named: Mapping[str, list[str]], place: Place) -> dict[str, list[str]]:
    """The store's isn't, where the environment says where the store is."""
    if not place.store_url:
        return dict(named)
    store = "store.password_secret"
    paths = {name: [path for path in named[name] if not path.endswith(store)] for name in named}
    return {name: left for name, left in paths.items() if left}


def secrets_known(place: Place, environ: Mapping[str, str] | None = None) -> list[KnownSecret]:
    """The secrets that the file names or the vault has, also beside faults of the file."""
    environ = os.environ if environ is None else environ
    text = text_of(place)
    local = dev_vars.read(place.project, place.env, Report())
    vault = Vault(place.state_dir, place.root_secret)
    named = config_file.parse(text, place.env).secrets
    return known(named, sources(environ, local, vault)[:-1], vault.names())


def caller(environ: Mapping[str, str] | None = None) -> Caller:
    """How to call a running Bulkhead, as the environment says."""
    environ = os.environ if environ is None else environ
    return Caller(
        # SDKs are given the /v1 too
        url=environ.get("BULKHEAD_URL", "").rstrip("/").removesuffix("/v1"),
        api_key=environ.get("BULKHEAD_API_KEY", "").strip(),
        admin_url=environ.get("BULKHEAD_ADMIN_URL", "").rstrip("/"),
        admin_key=environ.get("BULKHEAD_ADMIN_KEY", "").strip(),
        ca=environ.get("BULKHEAD_CA", ""),
        client_cert=environ.get("BULKHEAD_CLIENT_CERT", ""),
        client_key=environ.get("BULKHEAD_CLIENT_KEY", ""),
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
    if settings.local_tls:
        env["BULKHEAD_TLS"] = settings.local_tls
    return env | extra


def export_to_children(settings: Settings) -> None:
    """Put the settings' places into this process's environment, for workers it will spawn."""
    os.environ.update(child_environment(settings))


def temporary_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Where what lasts as long as a process may lie: TMPDIR, or else /tmp.

    It isn't tried out, as `tempfile` does: processes that look for each other there must not come
    to two answers because a disk is full.
    """
    environ = os.environ if environ is None else environ
    return Path(environ.get("TMPDIR") or "/tmp").absolute()  # noqa: S108 - the standard's name


def outside_environment(secrets: Iterable[str]) -> dict[str, str]:
    """The environment for a program that isn't ours: without what is ours, and those secrets."""
    hidden = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "VIRTUAL_ENV", *secrets}
    return {
        name: value
        for name, value in os.environ.items()
        if name not in hidden and not name.startswith(("BULKHEAD_", "PYTHON"))
    }


def service_manager(environ: Mapping[str, str] | None = None) -> tuple[str, float]:
    """Where systemd listens to this process, and every how many seconds it wants a sign of life.

    "" and 0: nowhere, never.
    """
    environ = os.environ if environ is None else environ
    span = environ.get("WATCHDOG_USEC", "")
    is_ours = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return environ.get("NOTIFY_SOCKET", ""), int(span) / 1e6 if span.isdecimal() and is_ours else 0


def environment() -> Mapping[str, str]:
    """The environment as it is now; later changes don't reach it."""
    return dict(os.environ)


def parent_said() -> tuple[Path, bool]:
    """The state folder, and whether this is `dev`: what a worker needs to load the rest."""
    return Path(os.environ["BULKHEAD_STATE"]), os.environ.get("BULKHEAD_DEV") == "1"


def _path_from(env: Mapping[str, str], name: str) -> Path | None:
    return Path(env[name]) if env.get(name) else None


def _variables_from(env: Mapping[str, str]) -> tuple[str, ...]:
    """What `child_environment` said of --var."""
    return tuple(json.loads(env.get("BULKHEAD_VARS") or "[]"))


def _pair(variable: str) -> tuple[str, str]:
    name, _, value = variable.partition(":")
    return name, value
