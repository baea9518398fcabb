"""What differs between two configurations, and what of it can't be changed while running.

Tables in a list are told apart by what names them: a model by its `id`, not by its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from runtime.config.sections import FileSettings

NAMES = ("id", "name", "url")  # what a table in a list is called by, the first that it has

# A listener is opened once, and those who call the node know it by where it is. What counts limits
# is opened once, too: it knows what runs; and so is the store.
LISTENERS = ("server.host", "server.port", "admin.host", "admin.port", "node")
FIXED = (*LISTENERS, "store", "limits.redis", "limits.replicas")
TLS = ("server.tls", "admin.tls")  # its files may change; whether there is any may not


class Change(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that differs, at its path in the file: `models.echo.price.input`."""

    kind: Literal["added", "removed", "changed"]
    path: str
    old: Any = None
    new: Any = None

    def __str__(self) -> str:
        sign = {"added": "+", "removed": "-", "changed": "~"}[self.kind]
        if self.kind != "changed":
            return f"{sign} {self.path}"
        return f"{sign} {self.path}: {_shown(self.old)} → {_shown(self.new)}"


def changes(old: FileSettings, new: FileSettings) -> list[Change]:
    """Everything that differs, in the order of the file's sections."""
    return list(_between("", old, new))


def needs_restart(old: FileSettings, new: FileSettings) -> list[str]:
    """The paths that differ and count only at a start."""
    found = [
        change.path
        for change in changes(old, new)
        if any(change.path == path or change.path.startswith(f"{path}.") for path in FIXED)
    ]
    tls = zip(TLS, _listeners(old), _listeners(new), strict=True)
    return found + [path for path, before, after in tls if bool(before) != bool(after)]


def _listeners(file: FileSettings) -> tuple[str, str]:
    return file.server.tls.cert, file.admin.tls.cert


def _between(path: str, old: Any, new: Any) -> Iterator[Change]:
    if old == new:
        return
    if isinstance(old, Struct) and isinstance(new, Struct):
        for field in msgspec.structs.fields(old):
            below = f"{path}.{field.encode_name}" if path else field.encode_name
            yield from _between(below, getattr(old, field.name), getattr(new, field.name))
    elif _are_named(old) and _are_named(new):
        yield from _between_tables(path, old, new)
    else:
        yield Change(kind="changed", path=path, old=old, new=new)


def _between_tables(path: str, old: Sequence[Struct], new: Sequence[Struct]) -> Iterator[Change]:
    before, after = ({_name(table): table for table in tables} for tables in (old, new))
    for name, table in after.items():
        if name in before:
            yield from _between(f"{path}.{name}", before[name], table)
        else:
            yield Change(kind="added", path=f"{path}.{name}")
    for name in (name for name in before if name not in after):
        yield Change(kind="removed", path=f"{path}.{name}")


def _are_named(value: Any) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(table, Struct) and _name(table) for table in value
    )


def _name(table: Struct) -> str:
    return next((getattr(table, name) for name in NAMES if hasattr(table, name)), "")


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value, enc_hook=str).decode()
    return text if len(text) <= 60 else text[:59] + "…"
