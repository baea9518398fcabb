"""Routes in wrangler's manner: on which hosts and paths a gateway answers.

`ai.example.com/v1/*`, `*.example.com/*`: a `*` stands only at the start of the host or at the end
of the path. A leading `https://` may be written and says nothing, since which scheme is spoken is
the listener's business. Ports are left out; a request's own is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_SCHEME = re.compile(r"^([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_LABELS = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_IPV6 = re.compile(r"\[[0-9a-f:.]+\]")
_PATH = re.compile(r"/[A-Za-z0-9._~!$&'()+,;=:@/-]*\*?")

ONLY_THERE = "a * may stand only at the start of the host and at the end of the path"

Matches = Callable[[str, str], bool]


class BadPattern(ValueError):
    """Not a route. The message says why, and what to write."""


@dataclass(frozen=True, slots=True)
class RoutePattern:
    """One route. Hosts are in lower case, as `bare_host` gives them."""

    host: str | None  # this one
    below: str | None  # and those that end so: ".example.com"; "" is every host
    path: str
    any_after: bool

    def matches(self, host: str, path: str) -> bool:
        """Whether a request for this host and path is meant."""
        is_host = host == self.host or (self.below is not None and host.endswith(self.below))
        return is_host and (path.startswith(self.path) if self.any_after else path == self.path)


def parse_route(text: str) -> RoutePattern:
    """A route from its text. Raises BadPattern."""
    scheme = _SCHEME.match(text)
    if scheme and scheme[1].lower() not in ("https", "http"):
        raise BadPattern(f"{scheme[0]} is no scheme of a route; write host and path alone")
    host, slash, path = text[scheme.end() if scheme else 0 :].partition("/")
    if not slash:
        raise BadPattern(f'has no path; write "{text}/*" for all of it')
    one, below = _hosts(host.lower())
    path = _checked_path(slash + path)
    return RoutePattern(one, below, path.removesuffix("*"), path.endswith("*"))


def compile_routes(routes: Iterable[str]) -> Matches | None:
    """Whether (a Host header, a path) is answered; None: all are. Raises BadPattern."""
    patterns = tuple(parse_route(route) for route in routes)
    if not patterns:
        return None

    def matches(host_header: str, path: str) -> bool:
        host = bare_host(host_header)
        return any(pattern.matches(host, path) for pattern in patterns)

    return matches


def bare_host(header: str) -> str:
    """A Host header (or HTTP/2's :authority) without its port, in lower case."""
    if header.startswith("["):  # [::1]:8787
        return header.partition("]")[0].lower() + "]"
    return header.partition(":")[0].lower().removesuffix(".")


def _hosts(host: str) -> tuple[str | None, str | None]:
    """`*.example.com` is what lies below example.com; `*example.com` is that and itself."""
    name = host.removeprefix("*")
    if host == "*":
        return None, ""
    if name == host:
        return _checked_host(name), None
    below = _checked_host(name.removeprefix("."))
    return (None if name.startswith(".") else below), f".{below}"


def _checked_host(name: str) -> str:
    if "*" in name:
        raise BadPattern(ONLY_THERE)
    if re.search(r"[^:]:[0-9]*$", name) or "]:" in name:
        raise BadPattern("the host of a route has no port; leave it out")
    if not (_LABELS.fullmatch(name) or _IPV6.fullmatch(name)):
        raise BadPattern(f"{name!r} is not a host name")
    return name


def _checked_path(path: str) -> str:
    if "*" in path[:-1]:
        raise BadPattern(ONLY_THERE)
    if not _PATH.fullmatch(path):
        raise BadPattern("the path may hold letters, digits and / - . _ ~ , but no query")
    return path
