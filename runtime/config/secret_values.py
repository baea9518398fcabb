"""Where the values of secrets come from. They are never in the config file, and never shown."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct

from runtime.config import dev_vars
from runtime.config.report import Report
from runtime.config.vault import Vault, VaultError
from runtime.keyring import BadRootSecret

VAULT = "vault"


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


def sources(environ: Mapping[str, str], local: Mapping[str, str], vault: Vault) -> list[Source]:
    """Where secrets are looked for; the first that has one wins. `local` is `.dev.vars`."""
    return [
        Source("environment", environ.get),
        Source(dev_vars.FILE, local.get),
        Source(VAULT, vault.get),
    ]


def resolve(
    wanted: Mapping[str, Sequence[str]], sources: Sequence[Source], report: Report
) -> Secrets:
    """The wanted secrets; `wanted` says which paths name each. What is missing is told there."""
    values: dict[str, str] = {}
    for name, paths in wanted.items():
        try:
            value = next(filter(None, (_value(source, name) for source in sources)), None)
        except (VaultError, BadRootSecret) as fault:
            told = str(fault)
        else:
            if value is not None:
                values[name] = value
                continue
            told = missing(name)
            report.unset.append(name)
        for path in paths:
            report.error(path, told)
    return Secrets(values)


class KnownSecret(Struct, frozen=True, kw_only=True):
    """What may be told of a secret: all but its value."""

    name: str
    source: str | None  # which value is used; None: there is none
    set_at: datetime.datetime | None  # when it was stored in the vault
    named_by: list[str]  # the paths in the config file


def known(
    named: Mapping[str, list[str]],
    sources: Sequence[Source],
    stored: Mapping[str, datetime.datetime],
) -> list[KnownSecret]:
    """What there is to tell. `sources` come before the vault, which isn't opened for this."""
    found = []
    for name in sorted({*named, *stored}):
        source = next((s.name for s in sources if _value(s, name)), None)
        if source is None and name in stored:
            source = VAULT
        paths = named.get(name, [])
        at = stored.get(name)
        found.append(KnownSecret(name=name, source=source, set_at=at, named_by=paths))
    return found


def _value(source: Source, name: str) -> str:
    return (source.get(name) or "").strip()


def missing(name: str) -> str:
    """What to do about a secret that no source has."""
    return (
        f"the secret {name} is not set: store it with `bulkhead secret put {name}`, or set the "
        f"environment variable {name}, or for `bulkhead dev` write {name}=… in .dev.vars"
    )
