"""Where TensorRT-LLM's servers are: addresses that can be called, and that not everybody sees.

trtllm-serve asks nobody for a key, and speaks no TLS. So no address that all the world reaches is
called in plain text. A name is believed: what it stands for is known where it is asked.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

PLAIN = "is a public address, called in plain text: anybody may read it, or answer there; {}"
NAMED = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
ADDRESS = re.compile(rf"(\[[0-9A-Fa-f:.]+\]|{NAMED}):([0-9]{{1,5}})")
MAX_PORT = 65535


def url_fault(url: str) -> str:
    """Why a good http(s) URL isn't called; "": it may be."""
    parts = urlsplit(url)
    if parts.scheme == "http" and is_public(parts.hostname or ""):
        return PLAIN.format("put TLS before it (https), or reach it by a private network")
    return ""


def guard_url_fault(url: str) -> str:
    """Why nobody can be asked there what a guard saw; "": one can."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        return "expected the http(s) URL at which the launcher tells of the guard"
    if parts.username or parts.password or parts.query or parts.fragment:
        return "is the URL alone: a secret goes into `guard_secret`"
    return url_fault(url)


def guard_is_open(url: str) -> bool:
    """Whether other machines may follow the launcher at a good URL, if it asks for no secret."""
    return not is_of_this_machine(urlsplit(url).hostname or "")


def address_faults(addresses: Sequence[str | None]) -> Iterator[tuple[int, str]]:
    """What is wrong with a list of `host:port`, as (index, reason)."""
    seen: set[str] = set()
    for i, address in enumerate(addresses):
        if address is None:
            continue
        found = ADDRESS.fullmatch(address)
        if found is None or not 0 < int(found[2]) <= MAX_PORT:
            yield i, f"expected host:port, such as 10.0.0.5:8001, found {address!r}"
        elif is_public(found[1].strip("[]")):
            yield i, PLAIN.format("reach it by a private network")
        elif address.lower() in seen:
            yield i, "is there twice"
        seen.add(address.lower())


def is_of_this_machine(host: str) -> bool:
    """Whether nobody else can call it there."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return host.lower() == "localhost"
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


def is_public(host: str) -> bool:
    """Whether a host is an address that all the world reaches, or every address there is."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return False
    found = getattr(found, "ipv4_mapped", None) or found
    return found.is_global or found.is_unspecified or found.is_multicast
