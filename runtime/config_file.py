"""The text of a config file becomes the settings of one environment, and every fault is told.

All environments are checked, also those that aren't chosen: a fault in [env.staging] is found on
the day it is written. What only the choice can tell (variables that are given then, secrets) is
asked of the chosen one alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime import preflight
from runtime.config import environments
from runtime.config.check import fields
from runtime.config.environments import NOT_INHERITED, Environment
from runtime.config.report import Fault, Report
from runtime.config.sections import FileSettings
from runtime.config.store import StoreSettings
from runtime.config.toml_text import BadText, tables
from runtime.config.variables import NAME, Variables, declared, expand, plain


@dataclass(frozen=True, slots=True)
class Given:
    """Variables from outside the file. The command line wins over `.dev.vars`, and that over it."""

    command_line: Mapping[str, str] = field(default_factory=dict)
    dev_vars: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Parsed:
    """What came out of a text: settings unless there were faults, and the secrets it asks for."""

    report: Report
    file: FileSettings | None = None
    secrets: dict[str, list[str]] = field(default_factory=dict)  # name: the paths that name it


def parse(
    text: bytes | str, env: str | None = "", given: Given | None = None, folder: Path | None = None
) -> Parsed:
    """Check a text, and read it for one environment: "" is the top, and None that nobody chose.

    With a `folder`, where relative paths start, the files are looked at that the text names.
    """
    report = Report()
    parsed = Parsed(report)
    data = toml(text, report)
    if data is None:
        return parsed
    environments.check(data, report)
    environments.check_choice(data, env, report)
    if env:
        environments.warn_not_inherited(data, env, report)
    values: dict[str, Any] = {}
    at_top: set[str] = set()
    for name in ("", *environments.names(data)):
        part = environments.merged(data, name) if name else environments.top(data)
        own = Report()
        if name == (env or ""):
            values = _chosen(part, given or Given(), folder, own, parsed)
        else:
            _other(part, own)
        _add(report, own, part, at_top)
    if not report.errors:
        parsed.file = FileSettings(**values)
    return parsed


def store(text: bytes | str, env: str, given: Given, report: Report) -> StoreSettings | None:
    """What a text says of the store, whatever is wrong with the rest of it; None: with that."""
    data = toml(text, report)
    if data is None:
        return None
    part = environments.merged(data, env) if env else environments.top(data)
    own = environments.Environment(
        part.name, {k: v for k, v in part.data.items() if k in ("vars", "store")}, part.own
    )
    table = _expanded(own, _variables(part.data, given, Report()), report).get("store", {})
    if not isinstance(table, dict):
        report.error("store", "expected a table, [store]")
        return None
    values = fields(StoreSettings, table, report, "store")
    report.errors = [part.located(fault) for fault in report.errors]
    return None if report.errors else StoreSettings(**values)


def toml(text: bytes | str, report: Report) -> dict[str, Any] | None:
    """The tables of a text, or None with the reason told."""
    try:
        return tables(text)
    except BadText as fault:
        report.error("", str(fault))
        return None


def _chosen(
    part: Environment, given: Given, folder: Path | None, report: Report, parsed: Parsed
) -> dict[str, Any]:
    """The sections of the environment that is used, and the secrets that it asks for."""
    data = _expanded(part, _variables(part.data, given, report), report)
    _check_models(data, report)
    values = fields(FileSettings, data, report)
    for name, paths in _named_secrets(data).items():
        parsed.secrets[name] = [part.where(path) for path in paths]
    if folder is not None:
        preflight.check(data, folder, report)
    return values


def _other(part: Environment, report: Report) -> None:
    """One that isn't used now. The top may be there only to be inherited from."""
    data = _expanded(part, _variables(part.data, None, report), report)
    if part.name:
        _check_models(data, report)
    fields(FileSettings, data, report)


def _check_models(data: dict[str, Any], report: Report) -> None:
    if data.get("models", []) == []:
        report.error("models", "no model is configured; add a [[models]] table")


def _expanded(part: Environment, variables: Variables, report: Report) -> dict[str, Any]:
    return {
        key: plain(value) if key in NOT_INHERITED else expand(value, variables, report, key)
        for key, value in part.data.items()
    }


def _variables(data: dict[str, Any], given: Given | None, report: Report) -> Variables:
    """What `${NAME}` may stand for; `given` is None for an environment that isn't chosen."""
    in_file = data.get("vars")
    values = declared(in_file, report) if isinstance(in_file, dict) else {}
    secrets = frozenset(_named_secrets(data))
    if given is None:
        return Variables(values, secrets=secrets, may_lack=True)
    private = frozenset(given.dev_vars) - frozenset(given.command_line)
    return Variables({**values, **given.dev_vars, **given.command_line}, private, secrets)


def _named_secrets(data: dict[str, Any]) -> dict[str, list[str]]:
    """The secrets that data asks for, whatever else is wrong with it."""
    found: dict[str, list[str]] = {}
    table = data.get("secrets")
    required = table.get("required") if isinstance(table, dict) else None
    for i, name in enumerate(required if isinstance(required, list) else []):
        _note(found, name, f"secrets.required[{i}]")
    alerts = data.get("alerts")
    if isinstance(alerts, dict):
        _note(found, alerts.get("secret"), "alerts.secret")
    models = data.get("models")
    for i, model in enumerate(models if isinstance(models, list) else []):
        if isinstance(model, dict):
            _note_model(found, model, f"models[{i}]")
    store = data.get("store")
    if isinstance(store, dict):
        _note(found, store.get("password_secret"), "store.password_secret")
    limits = data.get("limits")
    redis = limits.get("redis") if isinstance(limits, dict) else None
    if isinstance(redis, dict):
        _note(found, redis.get("password_secret"), "limits.redis.password_secret")
    seen = data.get("observability")
    otel = seen.get("otel") if isinstance(seen, dict) else None
    if isinstance(otel, dict):
        path = "observability.otel.authorization_secret"
        _note(found, otel.get("authorization_secret"), path)
    return found


def _note_model(found: dict[str, list[str]], model: dict[str, Any], path: str) -> None:
    """What it shows to its servers, and to those who tell of their guards."""
    _note(found, model.get("api_key_secret"), f"{path}.api_key_secret")
    servers = model.get("servers")
    for i, server in enumerate(servers if isinstance(servers, list) else []):
        if isinstance(server, dict):
            _note(found, server.get("api_key_secret"), f"{path}.servers[{i}].api_key_secret")
    trt = model.get("trt")
    if isinstance(trt, dict):
        _note(found, trt.get("guard_secret"), f"{path}.trt.guard_secret")


def _note(found: dict[str, list[str]], name: Any, path: str) -> None:
    if isinstance(name, str) and re.fullmatch(NAME, name):
        found.setdefault(name, []).append(path)


def _add(report: Report, own: Report, part: Environment, at_top: set[str]) -> None:
    """An environment's faults, but for inherited values whose fault was told of the top."""
    for fault in own.errors:
        located = part.located(fault)
        if not part.name:
            at_top.add(fault.path)
        elif located == fault and fault.path in at_top:
            continue
        report.errors.append(_explained(located, fault, part))
    for fault in own.warnings:
        located = part.located(fault)
        if located not in report.warnings:
            report.warnings.append(located)


def _explained(located: Fault, fault: Fault, part: Environment) -> Fault:
    """A fault that an inherited value has only in this environment says so."""
    if part.name and located == fault:
        return Fault(fault.path, f"{fault.message} (as [env.{part.name}] inherits it)")
    return located
