"""Where a server of ours may listen. `trtllm-serve` asks nobody for a key: whoever reaches it can
read what it caches, drain its events and load other weights. So it listens where the public isn't.
"""

from __future__ import annotations

import socket
from typing import NamedTuple
from urllib.parse import urlsplit

from engines.trtllm.places import is_public

PORTS = {"http": 80, "https": 443}


class LaunchRefused(Exception):
    """Nothing is started; the message says why, and what to do."""


class Bind(NamedTuple):
    """An address to listen on."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """Where it is called from this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def bind_of(url: str, key: str) -> Bind:
    """Where a URL of the configuration has a server listen. Raises LaunchRefused."""
    parts = urlsplit(url)
    if parts.scheme == "https":
        raise LaunchRefused(
            f"{key} is https, which nothing here speaks: say with an option where to listen "
            "behind whatever does"
        )
    return Bind(parts.hostname or "127.0.0.1", parts.port or PORTS["http"])


def said_bind(text: str) -> Bind:
    """An address as one types it, host:port. Raises LaunchRefused."""
    try:
        parts = urlsplit(f"//{text}")
        if parts.hostname and parts.port and not parts.path:
            return Bind(parts.hostname, parts.port)
    except ValueError:
        pass
    raise LaunchRefused(f"{text!r} is no address to listen on: write 127.0.0.1:8000, say")


def refuse_public(where: Bind, what: str, remedy: str) -> None:
    """Raises LaunchRefused for an address that strangers may reach: all of a machine's, too."""
    if any(map(is_public, _addresses(where))):
        raise LaunchRefused(f"{what} would listen on {where}, a public address; {remedy}")


def _addresses(where: Bind) -> set[str]:
    try:
        found = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)
    except socket.gaierror as fault:
        raise LaunchRefused(f"{where} can't be listened on: {fault.strerror}") from None
    return {str(address[0]).partition("%")[0] for *_, address in found}
