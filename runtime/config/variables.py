"""`${NAME}` in the file's texts becomes the value of a variable; `$${` stands for `${` itself.

A text that is nothing but `${NAME}` takes the variable's value with its type. Values from the
command line and from `.dev.vars` are texts; where a number or a boolean is expected, such a text is
read as one (`check`). Inside a longer text only texts, numbers, booleans and dates can stand.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runtime.config.report import Report, did_you_mean, join

NAME = r"[A-Za-z_][A-Za-z0-9_]*"
MAX_BITS = 64  # TOML's own bound
_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)\}|\$\{")
_WHOLE = re.compile(rf"\$\{{({NAME})\}}")


class Expanded(str):
    """A text that came out of `${NAME}`. `shown` is what a message may say of it."""

    __slots__ = ("shown",)
    shown: str

    def __new__(cls, text: str, shown: str) -> Expanded:
        self = super().__new__(cls, text)
        self.shown = shown
        return self


class Unknown:
    """Stands for a value whose variable isn't known."""


UNKNOWN = Unknown()


@dataclass(frozen=True, slots=True)
class Variables:
    """What `${NAME}` may stand for in one environment."""

    values: Mapping[str, Any]
    private: frozenset[str] = frozenset()  # from .dev.vars: not to be shown
    secrets: frozenset[str] = frozenset()  # names that no text may hold
    may_lack: bool = False  # an environment that isn't chosen: others may be given when it is


def declared(data: dict[str, Any], report: Report) -> dict[str, Any]:
    """The values of [vars]; what is wrong with one is told, and it is made UNKNOWN."""
    for name in data:
        if not re.fullmatch(NAME, name):
            told = "no `${…}` can name it: letters, digits and _ , the first no digit"
            report.error(join("vars", name), told)
    return {name: _declared(value, report, join("vars", name)) for name, value in data.items()}


def expand(data: Any, variables: Variables, report: Report, path: str = "") -> Any:
    """`data` with every `${NAME}` replaced; what can't be replaced is told and made UNKNOWN."""
    if isinstance(data, dict):
        return {k: expand(v, variables, report, join(path, k)) for k, v in data.items()}
    if isinstance(data, list):
        return [expand(v, variables, report, f"{path}[{i}]") for i, v in enumerate(data)]
    value = data
    if isinstance(data, str) and "${" in data:
        value = _text(data, variables, report, path)
    return _usable(value, report, path)


def _declared(data: Any, report: Report, path: str) -> Any:
    if isinstance(data, dict):
        return {k: _declared(v, report, join(path, k)) for k, v in data.items()}
    if isinstance(data, list):
        return [_declared(v, report, f"{path}[{i}]") for i, v in enumerate(data)]
    if isinstance(data, float) and not math.isfinite(data):
        report.error(path, f"expected a number, found {data}")
        return UNKNOWN
    return _usable(data, report, path)


def _usable(value: Any, report: Report, path: str) -> Any:
    """A single value, or UNKNOWN with the reason told if nothing could use it."""
    if isinstance(value, str) and "\0" in value:  # no file's name, URL or header can
        report.error(path, "a text can't hold the character U+0000")
        return UNKNOWN
    if isinstance(value, int) and value.bit_length() > MAX_BITS:  # Python may not even write it
        report.error(path, f"a whole number has at most {MAX_BITS} bits")
        return UNKNOWN
    return value


def plain(data: Any) -> Any:
    """`data` with ordinary texts, for whoever keeps it."""
    if isinstance(data, dict):
        return {key: plain(value) for key, value in data.items()}
    if isinstance(data, list):
        return [plain(value) for value in data]
    return str(data) if isinstance(data, Expanded) else data


def has_unknown(data: Any) -> bool:
    """Whether a value, or one inside it, isn't known."""
    if isinstance(data, dict):
        return any(map(has_unknown, data.values()))
    if isinstance(data, list):
        return any(map(has_unknown, data))
    return data is UNKNOWN


def _text(text: str, variables: Variables, report: Report, path: str) -> Any:
    names = [match[1] for match in _REFERENCE.finditer(text) if match[0] != "$${"]
    complaints = [fault for name in names if (fault := _fault(name, variables))]
    for complaint in complaints:
        report.error(path, complaint)
    if complaints or any(has_unknown(variables.values.get(name, UNKNOWN)) for name in names):
        return UNKNOWN
    if whole := _WHOLE.fullmatch(text):
        value = variables.values[whole[1]]
        if not isinstance(value, str):
            return value
    elif bad := [n for n in names if _written(variables.values[n]) is None]:
        report.error(path, f"`{bad[0]}` is a table or a list, which can't stand inside a text")
        return UNKNOWN
    result = _REFERENCE.sub(
        lambda m: "${" if m[0] == "$${" else _written(variables.values[m[1]]) or "", text
    )
    quoted = json.dumps(text, ensure_ascii=False)
    if names and variables.private.isdisjoint(names):
        quoted += f", which is {json.dumps(result, ensure_ascii=False)}"
    return Expanded(result, quoted)


def _fault(name: str | None, variables: Variables) -> str:
    """Why a reference can't be, or nothing."""
    if name is None:
        return "`${` has no `}`; write `$${` for the two characters themselves"
    if not re.fullmatch(NAME, name):
        return f"`${{{name}}}` names no variable; write `$${{` for the two characters themselves"
    if name in variables.secrets:
        return f"`{name}` is a secret, and no value of this file may hold one"
    if name in variables.values or variables.may_lack:
        return ""
    hint = did_you_mean(name, variables.values)
    return f"there is no variable `{name}`: set it in [vars], or with --var {name}:VALUE{hint}"


def _written(value: Any) -> str | None:
    """A value inside a longer text, or None if it can't be there."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return str(value) if isinstance(value, str | int | float) else None
