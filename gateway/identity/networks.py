"""From where a caller calls: its address, behind proxies that are trusted too, and networks.

An IPv4 address is the same whether it's written as one or mapped into IPv6. Whoever comes through a
unix socket has no address, and is in no network.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

from starlette.types import Scope

from runtime.config.networks import UNIX, Network, parse_network

Address = IPv4Address | IPv6Address

MAX_ADDRESS = 64  # characters
FORWARDED_FOR = b"x-forwarded-for"
MAX_FORWARDED = 4096  # bytes: more is nobody's honest list


@lru_cache(maxsize=4096)
def parse_address(text: str) -> Address | None:
    """An address, without its zone; None if it's none. IPv4 in IPv6 is IPv4."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address):
        return address.ipv4_mapped or address
    return address


def is_inside(address: Address | None, networks: Iterable[Network]) -> bool:
    """Whether one of the networks has the address."""
    return address is not None and any(address in network for network in networks)


class Proxies:
    """The proxies that are believed when they say for whom they ask. Empty: nobody is."""

    def __init__(self, trusted: Sequence[str] = ()) -> None:
        self._networks = tuple(parse_network(text) for text in trusted if text != UNIX)
        self._unix = UNIX in trusted

    def caller(self, scope: Scope) -> Address | None:
        """Whoever asks: the peer, or for a trusted one the last hop before those that are.

        None if that has no address, or what should be one is none.
        """
        peer = scope.get("client")
        address = parse_address(peer[0]) if peer and peer[0] else None
        if not self._trusts(address, is_peer=not (peer and peer[0])):
            return address
        for hop in reversed(_forwarded(scope)):
            address = _hop_address(hop)
            if not self._trusts(address):
                break
        return address

    def _trusts(self, address: Address | None, *, is_peer: bool = False) -> bool:
        if address is None:
            return is_peer and self._unix
        return is_inside(address, self._networks)


def _forwarded(scope: Scope) -> list[str]:
    """The hops that `X-Forwarded-For` names, all of its lines in order."""
    lines = [value for name, value in scope["headers"] if name == FORWARDED_FOR]
    joined = b",".join(lines)
    if not joined:
        return []
    hops = joined[-MAX_FORWARDED:].decode("latin-1").split(",")
    # What was cut off isn't a hop, nor would be what is left of one.
    return hops if len(joined) <= MAX_FORWARDED else hops[1:]


def _hop_address(hop: str) -> Address | None:
    """`1.2.3.4`, `::1`, and as some proxies write them: `1.2.3.4:56`, `[::1]:56`."""
    text = hop.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    return parse_address(text) if len(text) <= MAX_ADDRESS else None
