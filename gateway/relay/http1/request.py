"""A request as bytes, and where it goes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import httpx

DEFAULT_PORTS = {"http": 80, "https": 443}
WITH_BODY = frozenset(("POST", "PUT", "PATCH"))  # which say so, also of an empty one


class Target(NamedTuple):
    """A URL, taken apart. `host` is as in a certificate, `authority` as in the Host field."""

    is_tls: bool
    host: str
    port: int
    authority: str
    path: str  # and the query


@lru_cache(512)
def target_of(url: str) -> Target:
    """Where a URL leads. Raises ValueError if that isn't over HTTP."""
    parsed = httpx.URL(url)
    if parsed.scheme not in DEFAULT_PORTS or not parsed.host:
        raise ValueError(f"not a URL of a server: {url[:200]}")
    return Target(
        is_tls=parsed.scheme == "https",
        host=parsed.raw_host.decode("ascii").strip("[]"),
        port=parsed.port or DEFAULT_PORTS[parsed.scheme],
        authority=parsed.netloc.decode("ascii"),
        path=parsed.raw_path.decode("ascii"),
    )


def encode(method: str, target: Target, headers: Mapping[str, str], body: bytes | None) -> bytes:
    """The whole request. Raises ValueError if a field would be more than one.

    `headers` have names in lower case. Host and length are ours.
    """
    lines = [f"{method} {target.path} HTTP/1.1", f"host: {target.authority}"]
    lines += [f"{k}: {v}" for k, v in headers.items() if k not in ("host", "content-length")]
    if body or method in WITH_BODY:
        lines.append(f"content-length: {len(body or b'')}")
    head = "\r\n".join(lines)
    if head.count("\r") != len(lines) - 1 or head.count("\n") != len(lines) - 1 or "\0" in head:
        raise ValueError("a line break within a field of a request")
    return b"%b\r\n\r\n%b" % (head.encode("latin-1"), body or b"")
