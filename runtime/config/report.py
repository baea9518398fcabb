"""What a check found: faults and warnings, each with its path in the file."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_BARE = re.compile(r"[A-Za-z0-9_$-]+")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong, at one place. `path` is written as in the file: `models[0].price.input`."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


@dataclass(slots=True)
class Report:
    """Warnings don't stop a start; errors do. `holes` counts values that can't be known yet.

    `unset` names the secrets that no source has; each of them is an error too.
    """

    errors: list[Fault] = field(default_factory=list)
    warnings: list[Fault] = field(default_factory=list)
    holes: int = 0
    unset: list[str] = field(default_factory=list)

    def error(self, path: str, message: str) -> None:
        self.errors.append(Fault(path, message))

    def warn(self, path: str, message: str) -> None:
        self.warnings.append(Fault(path, message))

    def make_strict(self) -> None:
        """Warnings count as errors from now on."""
        self.errors += self.warnings
        self.warnings = []


def join(path: str, key: str) -> str:
    """The path of a table's key. A key that isn't bare is quoted, as in the file."""
    name = key if _BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False)
    return f"{path}.{name}" if path else name


def split(path: str) -> list[str]:
    """The segments of a path: `models[0].price.input` has three."""
    return re.findall(r'(?:"(?:\\.|[^"\\])*"|[^."])+', path)


def did_you_mean(word: str, known: Iterable[str], quote: str = "`") -> str:
    """`; did you mean …?` with the known word that is closest, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {quote}{close[0]}{quote}?" if close else ""
