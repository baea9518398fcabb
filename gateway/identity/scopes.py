"""What a caller may do, by name. Almost every route needs one of them."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.store.principal import ALL_SCOPES, DEFAULT_SCOPES

INFERENCE = "inference"
MODELS_READ = "models:read"
USAGE_READ = "usage:read"
KEYS_WRITE = "keys:write"

ALL = ALL_SCOPES
DEFAULT = DEFAULT_SCOPES
DELEGABLE = DEFAULT_SCOPES  # what a minted token may have: it makes no more keys


class UnknownScope(ValueError):
    """There is no such scope; the message names those there are."""


def parse(names: Iterable[str]) -> frozenset[str]:
    """Scopes by name. Raises UnknownScope."""
    found = frozenset(names)
    for name in sorted(found - ALL):
        raise UnknownScope(f"{name[:64]!r} is not a scope: use {', '.join(sorted(ALL))}")
    return found


def text(scopes: Iterable[str]) -> str:
    """As a row of the store has them."""
    return " ".join(sorted(scopes))
