"""Checks parsed data against a msgspec struct and reports every fault at once, each with its path.

msgspec stops at the first fault; an operator with five typos deserves five lines. So structs and
lists are walked here, and each leaf is converted by msgspec on its own. A struct that has rules
across its fields tells them in a static `faults(values) -> (key, message)…`, and in `doubts` what
may be meant but rarely is. They get what was good, so that they speak even beside another fault:
None stands for a value that wasn't, in `values` and in the structs within. What the file doesn't
name isn't in `values`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from runtime.config import words
from runtime.config.kinds import Json
from runtime.config.report import Report, did_you_mean, join
from runtime.config.variables import Expanded, has_unknown, plain

T = TypeVar("T")


def convert(cls: type[T], data: object, report: Report, path: str = "") -> T | None:
    """`data` as `cls`, or None with the reasons added to `report`."""
    before = (len(report.errors), report.holes)
    found: T | None = _convert(cls, data, report, path)
    return found if (len(report.errors), report.holes) == before else None


def fields(
    kind: type[msgspec.Struct], data: dict[str, Any], report: Report, path: str = ""
) -> dict[str, Any]:
    """The fields of a struct that `data` has; None stands for one with a fault, or that lacks."""
    hints = get_type_hints(kind, include_extras=True)
    known = {f.encode_name: f for f in msgspec.structs.fields(kind)}
    _warn_unknown(data, list(known), report, path)
    values: dict[str, Any] = {}
    missing: list[str] = []
    for key, spec in known.items():
        if key in data:
            values[spec.name] = _convert(hints[spec.name], data[key], report, join(path, key))
        elif spec.required:
            report.error(join(path, key), "is missing")
            missing.append(spec.name)
    for key, message in getattr(kind, "faults", _no_faults)(values):
        report.error(f"{path}.{key}" if path else key, message)
    for key, message in getattr(kind, "doubts", _no_faults)(values):
        report.warn(f"{path}.{key}" if path else key, message)
    return values | dict.fromkeys(missing)


def _convert(kind: Any, data: object, report: Report, path: str) -> Any:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _struct(kind, data, report, path)
    if get_origin(kind) is tuple:
        return _list(get_args(kind)[0], data, report, path)
    if kind == Json and (endless := list(_endless(data, path))):
        for where, number in endless:
            report.error(where, f"expected a number, found {number}")
        return None
    return _leaf(kind, data, report, path)


def _no_faults(_: dict[str, Any]) -> Iterator[tuple[str, str]]:
    return iter(())


def _struct(kind: type[msgspec.Struct], data: object, report: Report, path: str) -> Any:
    if not isinstance(data, dict):
        return _refuse("a table", data, report, path)
    return kind(**fields(kind, data, report, path))


def _list(item: Any, data: object, report: Report, path: str) -> Any:
    if not isinstance(data, list):
        is_table = isinstance(item, type) and issubclass(item, msgspec.Struct)
        return _refuse("a list of tables" if is_table else "a list", data, report, path)
    return tuple(_convert(item, entry, report, f"{path}[{i}]") for i, entry in enumerate(data))


def _leaf(kind: Any, data: object, report: Report, path: str) -> Any:
    if has_unknown(data):
        report.holes += 1
        return None
    try:
        # A variable's value may be a text that stands for a number.
        return msgspec.convert(plain(data), kind, strict=not isinstance(data, Expanded))
    except msgspec.ValidationError:
        hint = words.suggestion(kind, data)
        return _refuse(words.expected(kind), data, report, path, kind, hint)


def _endless(data: object, path: str) -> Iterator[tuple[str, float]]:
    """Every nan and inf, however deep, with its path."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _endless(value, join(path, key))
    elif isinstance(data, list):
        for i, value in enumerate(data):
            yield from _endless(value, f"{path}[{i}]")
    elif isinstance(data, float) and not math.isfinite(data):
        yield path, data


def _refuse(
    wanted: str, data: object, report: Report, path: str, kind: Any = None, hint: str = ""
) -> None:
    if has_unknown(data):
        report.holes += 1
    else:
        report.error(path, f"expected {wanted}, found {words.found(data, kind)}{hint}")


def _warn_unknown(data: dict[str, Any], known: list[str], report: Report, path: str) -> None:
    for key in data:
        if key not in known:
            hint = did_you_mean(key, known)
            report.warn(join(path, key), f"unknown key, ignored{hint}")
