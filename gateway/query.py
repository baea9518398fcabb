"""The query of a GET: known parameters, each at most once, and all others refused by name."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import parse_qsl

from gateway.asgi import Call
from gateway.errors import BadRequest

Query = dict[str, str]
Lists = dict[str, tuple[str, ...]]


def query_of(call: Call, known: Collection[str]) -> Query:
    """The parameters that were sent. Raises BadRequest with the name of one that isn't `known`."""
    return query_and_lists(call, known, ())[0]


def query_and_lists(
    call: Call, known: Collection[str], lists: Collection[str]
) -> tuple[Query, Lists]:
    """The same, and those that may have several values: `a=1,2`, `a=1&a=2` or `a[]=1&a[]=2`.

    As they were sent: `a=1,,1` has three, and one is empty.
    """
    pairs = parse_qsl(call.scope["query_string"].decode("latin-1"), keep_blank_values=True)
    found: Query = {}
    listed: Lists = {}
    for name, value in pairs:
        if (plain := name.removesuffix("[]")) in lists:
            listed[plain] = (*listed.get(plain, ()), *value.split(","))
        elif name not in known:
            every = sorted((*known, *lists))
            expected = f"known are {', '.join(every)}" if every else "this route takes none"
            raise BadRequest(f"{name[:64]}: unknown parameter; {expected}", param=name[:64])
        elif name in found:
            raise BadRequest(f"{name}: may be sent only once", param=name)
        else:
            found[name] = value
    return found, listed
