"""`[env.NAME]` in wrangler's manner: what an environment has of its own, and what it inherits.

A key of an environment replaces the top's whole. `vars` and `secrets` are never inherited, since a
value that slips from one environment into another is an accident. The name becomes `<name>-<env>`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from runtime.config.report import Fault, Report, did_you_mean, join

DEFAULT_NAME = "bulkhead"
TOP_ONLY = ("env", "$schema")
MAX_LISTED = 3
NOT_INHERITED = ("vars", "secrets")
NAME = r"[a-z0-9_][a-z0-9_-]*"


@dataclass(frozen=True, slots=True)
class Environment:
    """The file as it stands for one environment; `""` is the top of the file."""

    name: str
    data: dict[str, Any]
    own: frozenset[str] = frozenset()  # the keys that [env.NAME] has itself

    def where(self, path: str) -> str:
        """Where in the file a path of this environment is."""
        key = re.split(r"[.\[]", path, maxsplit=1)[0]
        return f"env.{self.name}.{path}" if key in self.own else path

    def located(self, fault: Fault) -> Fault:
        """A fault of the merged data, with its path in the file."""
        return Fault(self.where(fault.path), fault.message)


def is_name(text: str) -> bool:
    """Whether an environment may be called so; its state folder is."""
    return re.fullmatch(NAME, text) is not None


def names(data: dict[str, Any]) -> list[str]:
    """The environments that a file has, as far as they can be used."""
    tables = data.get("env")
    return [n for n in tables if is_name(n)] if isinstance(tables, dict) else []


def top(data: dict[str, Any]) -> Environment:
    """The file without its environments."""
    return Environment("", {k: v for k, v in data.items() if k not in TOP_ONLY})


def merged(data: dict[str, Any], name: str) -> Environment:
    """The top with the keys of an environment in place of its own."""
    own = _own(data, name)
    inherited = {k: v for k, v in data.items() if k not in (*TOP_ONLY, *NOT_INHERITED)}
    if isinstance(inherited.setdefault("name", DEFAULT_NAME), str):
        inherited["name"] = f"{inherited['name']}-{name}"
    return Environment(name, inherited | own, frozenset(own))


def check(data: dict[str, Any], report: Report) -> None:
    """What is wrong with the environments as such."""
    if "$schema" in data and not isinstance(data["$schema"], str):
        report.error("$schema", "expected the path or URL of a JSON schema")
    tables = data.get("env", {})
    if not isinstance(tables, dict):
        report.error("env", "expected a table of environments, such as [env.staging]")
        return
    for name, table in tables.items():
        path = join("env", name)
        if not is_name(name):
            report.error(
                path, "an environment's name is made of lowercase letters, digits, _ and -"
            )
        elif not isinstance(table, dict):
            report.error(path, f"expected a table, [env.{name}]")
        else:
            for key in TOP_ONLY:
                if key in table:
                    report.warn(join(path, key), "means something only at the top; ignored")


def check_choice(data: dict[str, Any], chosen: str | None, report: Report) -> None:
    """That the chosen environment is there, and that one was chosen if there are any."""
    known = names(data)
    listed = ", ".join(f'"{name}"' for name in known)
    if chosen and chosen not in known:
        hint = did_you_mean(chosen, known, '"') or f"; add a table [env.{chosen}]"
        there = f"there are {listed}" if known else "the file has no environments"
        report.error("env", f'there is no environment "{chosen}" ({there}){hint}')
    elif chosen is None and known:
        report.warn(
            "env",
            f'none was chosen, so the top is used: say --env "" for that, or choose {_some(known)}',
        )


def _some(names: list[str]) -> str:
    """So many as fit a line."""
    return ", ".join(f'"{name}"' for name in names[:MAX_LISTED]) + (
        ", …" if len(names) > MAX_LISTED else ""
    )


def warn_not_inherited(data: dict[str, Any], name: str, report: Report) -> None:
    """Names each variable and secret that is at the top, and not in the environment."""
    own = _own(data, name)
    here = _keys(own.get("vars"))
    for key in _keys(data.get("vars")):
        if key not in here:
            report.warn(join(f"env.{name}.vars", key), _lost("vars", key, name))
    here = _required(own)
    for key in _required(data):
        if key not in here:
            report.warn(f"env.{name}.secrets.required", _lost("secrets", key, name))


def _lost(table: str, key: str, name: str) -> str:
    return (
        f"`{key}` is at the top, but {table} are not inherited; "
        f"say it in [env.{name}.{table}] too if it is needed there"
    )


def _own(data: dict[str, Any], name: str) -> dict[str, Any]:
    tables = data.get("env")
    own = tables.get(name) if isinstance(tables, dict) else None
    return {k: v for k, v in own.items() if k not in TOP_ONLY} if isinstance(own, dict) else {}


def _keys(table: Any) -> list[str]:
    return list(table) if isinstance(table, dict) else []


def _required(data: dict[str, Any]) -> list[str]:
    secrets = data.get("secrets")
    required = secrets.get("required") if isinstance(secrets, dict) else None
    return [n for n in required if isinstance(n, str)] if isinstance(required, list) else []
