"""Checks parsed data against a msgspec struct and reports every fault at once, each with its path.

msgspec stops at the first fault; an operator with five typos deserves five lines. So structs and
lists of structs are walked here, and each leaf is converted by msgspec on its own. A struct that
has rules across its fields tells them in a static `faults(values) -> (key, message)…`, which gets
the values that were good, so that it speaks even beside another fault.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong, at one place. `path` is written as in the file: `models[0].price.input`."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


@dataclass(slots=True)
class Report:
    """What a check found. Warnings don't stop a start; errors do."""

    errors: list[Fault] = field(default_factory=list)
    warnings: list[Fault] = field(default_factory=list)

    def error(self, path: str, message: str) -> None:
        self.errors.append(Fault(path, message))

    def warn(self, path: str, message: str) -> None:
        self.warnings.append(Fault(path, message))


def convert(cls: type[T], data: object, report: Report, path: str = "") -> T | None:
    """`data` as `cls`, or None with the reasons added to `report`."""
    return _convert(cls, data, report, path)  # type: ignore[no-any-return]


def _convert(kind: Any, data: object, report: Report, path: str) -> Any:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _struct(kind, data, report, path)
    item = _struct_item(kind)
    if item is not None:
        return _list(item, data, report, path)
    return _leaf(kind, data, report, path)


def _no_faults(_: dict[str, Any]) -> Iterator[tuple[str, str]]:
    return iter(())


def _struct_item(kind: Any) -> type[msgspec.Struct] | None:
    """The struct in `tuple[Struct, ...]`, if `kind` is one."""
    args = get_args(kind)
    if get_origin(kind) is tuple and args and isinstance(args[0], type):
        return args[0] if issubclass(args[0], msgspec.Struct) else None
    return None


def _struct(kind: type[msgspec.Struct], data: object, report: Report, path: str) -> Any:
    if not isinstance(data, dict):
        report.error(path, f"expected a table, found {_shown(data)}")
        return None
    before = len(report.errors)
    hints = get_type_hints(kind, include_extras=True)
    fields = {f.encode_name: f for f in msgspec.structs.fields(kind)}
    _warn_unknown(data, list(fields), report, path)
    values: dict[str, Any] = {}
    for key, spec in fields.items():
        if key in data:
            values[spec.name] = _convert(hints[spec.name], data[key], report, _join(path, key))
        elif spec.required:
            report.error(_join(path, key), "is missing")
    for key, message in getattr(kind, "faults", _no_faults)(values):
        report.error(_join(path, key), message)
    return kind(**values) if len(report.errors) == before else None


def _list(item: type[msgspec.Struct], data: object, report: Report, path: str) -> Any:
    if not isinstance(data, list):
        report.error(path, f"expected a list of tables, found {_shown(data)}")
        return None
    return tuple(_struct(item, entry, report, f"{path}[{i}]") for i, entry in enumerate(data))


def _leaf(kind: Any, data: object, report: Report, path: str) -> Any:
    try:
        return msgspec.convert(data, kind, strict=True)
    except msgspec.ValidationError as fault:
        reason, _, inner = str(fault).partition(" - at `$")
        where = path + inner.rstrip("`")
        expected = _described(kind) if "matching regex" in reason else ""
        reason = f"expected {expected}" if expected else reason[:1].lower() + reason[1:]
        report.error(where, f"{reason} (found {_shown(data)})")
        return None


def _described(kind: Any) -> str:
    """What an annotated type says of itself: a pattern is no help to who must mend a value."""
    return next((meta.description for meta in get_args(kind)[1:] if meta.description), "")


def _warn_unknown(data: dict[str, Any], known: list[str], report: Report, path: str) -> None:
    for key in data:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean `{close[0]}`?" if close else ""
            report.warn(_join(path, key), f"unknown key, ignored{hint}")


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _shown(data: object) -> str:
    text = repr(data)
    return text if len(text) <= 40 else text[:37] + "…"
