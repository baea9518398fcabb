"""The query of an admin route: known parameters, each with a value and at most once. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gateway.admin.problems import BadParameter

Pairs = Sequence[tuple[str, str]]


def single(
    pairs: Pairs, known: Collection[str], *, repeatable: Collection[str] = ()
) -> dict[str, str]:
    """The parameters by name, of those that are `repeatable` the last. Raises BadParameter."""
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            expected = f"known are {', '.join(known)}" if known else "this route takes none"
            raise BadParameter(f"{name[:64]}: unknown parameter; {expected}")
        if name in found and name not in repeatable:
            raise BadParameter(f"{name}: may be sent only once")
        if not value:
            raise BadParameter(f"{name}: has no value; leave it out, or give it one")
        found[name] = value
    return found
