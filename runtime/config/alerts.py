"""The config's `[alerts]`: where operators are told what budgets have spent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from runtime.config.kinds import OptionalSecret, is_http_url


class AlertSettings(Struct, frozen=True, kw_only=True):
    """A webhook. What it is sent is signed."""

    url: str = ""  # empty: alerts are kept in the store, and not sent
    secret: OptionalSecret = ""  # the secret that it is signed with

    @staticmethod
    def faults(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """A URL that can be called, and a secret: nobody should believe what is unsigned."""
        url, secret = found.get("url"), found.get("secret", "")
        if url and not is_http_url(url):
            yield "url", "expected an http:// or https:// URL"
        if url and secret == "":
            yield "secret", "is missing beside `url`: what is sent is signed with it"
