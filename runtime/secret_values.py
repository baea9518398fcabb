"""Where the values of secrets come from. They are never in the config file, and never shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from runtime.report import Report


class Secrets(Mapping[str, str]):
    """Values by name. What is printed, logged or made JSON of is the names at most."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self._values)})"


@dataclass(frozen=True, slots=True)
class Source:
    """One place of values. `get` gives None for what isn't there."""

    name: str
    get: Callable[[str], str | None]


def resolve(
    wanted: Mapping[str, Sequence[str]], sources: Sequence[Source], report: Report
) -> Secrets:
    """The wanted secrets from the first source that has each; `wanted` says which paths name it."""
    values: dict[str, str] = {}
    for name, paths in wanted.items():
        found = next((v for source in sources if (v := (source.get(name) or "").strip())), None)
        if found is not None:
            values[name] = found
        else:
            for path in paths:
                report.error(path, missing(name))
    return Secrets(values)


def source_of(name: str, sources: Sequence[Source]) -> str | None:
    """Which source a secret comes from, or None."""
    return next((s.name for s in sources if (s.get(name) or "").strip()), None)


def missing(name: str) -> str:
    """What to do about a secret that no source has."""
    return (
        f"the secret {name} is not set: store it with `bulkhead secret put {name}`, or set the "
        f"environment variable {name}, or for `bulkhead dev` write {name}=… in .dev.vars"
    )
