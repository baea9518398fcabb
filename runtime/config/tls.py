"""TLS in the config file, at either end. By itself, since a host imports little."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct


class ServerTls(Struct, frozen=True, kw_only=True):
    """How a listener proves who it is. Files, in PEM; a change of them is noticed."""

    cert: str = ""  # the chain, leaf first; empty: plain HTTP
    key: str = ""
    client_ca: str = ""  # callers must show a certificate of this authority
    min_version: Literal["1.2", "1.3"] = "1.2"

    @staticmethod
    def faults(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """A certificate needs its key, and the other way round."""
        for one, other in (("cert", "key"), ("key", "cert"), ("client_ca", "cert")):
            if found.get(one) and found.get(other, "") == "":
                yield other, f"is missing beside `{one}`"


class ClientTls(Struct, frozen=True, kw_only=True):
    """How we prove who we are to a server, and whom we believe. Files, in PEM."""

    ca: str = ""  # instead of the system's
    cert: str = ""
    key: str = ""

    @staticmethod
    def faults(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """A certificate needs its key, and the other way round."""
        for one, other in (("cert", "key"), ("key", "cert")):
            if found.get(one) and found.get(other, "") == "":
                yield other, f"is missing beside `{one}`"
