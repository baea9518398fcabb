"""Networks as a configuration and a key's allow list write them: CIDR, or one address."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_network

Network = IPv4Network | IPv6Network

MAPPED_BITS = 96  # of an IPv6 address, before the IPv4 address that is mapped into it
MAX_LEN = 64
UNIX = "unix"  # among trusted proxies: whoever reaches a unix socket that we listen on


class BadNetwork(ValueError):
    """It's no network; the message says what to write."""


def parse_network(text: str) -> Network:
    """A network in CIDR form, or one address; IPv4 in IPv6 is IPv4. Raises BadNetwork."""
    try:
        network = ip_network(text)
    except ValueError:
        raise BadNetwork(_fault(text)) from None
    if isinstance(network, IPv4Network):
        return network
    if network.network_address.scope_id is not None:
        raise BadNetwork(f"{text[:MAX_LEN]!r} names a zone of one machine: leave it out")
    mapped = network.network_address.ipv4_mapped
    if mapped is not None and network.prefixlen >= MAPPED_BITS:
        return IPv4Network((mapped, network.prefixlen - MAPPED_BITS))
    return network


def proxy_fault(text: str) -> str:
    """Why a text is no trusted proxy, or nothing."""
    try:
        if text != UNIX:
            parse_network(text)
    except BadNetwork as fault:
        return f'{fault}, or "{UNIX}"'
    return ""


def _fault(text: str) -> str:
    try:
        meant = ip_network(text, strict=False)
    except ValueError:
        return f"{text[:MAX_LEN]!r} is no network: write 203.0.113.0/24, 2001:db8::/32 or ::1, say"
    return f"{text!r} has bits set beyond its prefix: write {meant}, or one address"
