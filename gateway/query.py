"""The query of a GET: known parameters, each at most once, and all others refused by name."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import parse_qsl

from gateway.asgi import Call
from gateway.errors import BadRequest


def query_of(call: Call, known: Collection[str]) -> dict[str, str]:
    """The parameters that were sent. Raises BadRequest with the name of one that isn't `known`."""
    pairs = parse_qsl(call.scope["query_string"].decode("latin-1"), keep_blank_values=True)
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            expected = f"known are {', '.join(sorted(known))}" if known else "this route takes none"
            raise BadRequest(f"{name[:64]}: unknown parameter; {expected}", param=name[:64])
        if name in found:
            raise BadRequest(f"{name}: may be sent only once", param=name)
        found[name] = value
    return found
