"""`[store]`: where usage records, tenants and keys are kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

from msgspec import Struct

from runtime.config.kinds import OptionalSecret

SCHEMES = ("postgresql", "postgres")


class StoreSettings(Struct, frozen=True, kw_only=True):
    """A PostgreSQL database, which gateways share; or else SQLite's file in the state folder."""

    url: str = ""  # "": SQLite
    password_secret: OptionalSecret = ""  # the secret that holds its password

    @staticmethod
    def faults(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """A URL that the server's clients take, without a secret in it."""
        url = found.get("url")
        if url and (told := url_fault(url)):
            yield "url", told
        elif url and has_password(url):
            yield "url", "a password doesn't belong here; name its secret in `password_secret`"
        elif url == "" and found.get("password_secret"):
            yield "url", "is missing beside `password_secret`"


def url_fault(url: str) -> str:
    """Why no PostgreSQL database is there, or nothing. It doesn't show the URL."""
    try:
        parts = urlsplit(url)
        _ = parts.port
        query = parse_qs(parts.query, strict_parsing=True) if parts.query else {}
    except ValueError:
        return "expected a postgresql:// URL; in a name or a password, write / as %2F and @ as %40"
    if parts.scheme not in SCHEMES:
        return "expected a postgresql:// URL, such as postgresql://bulkhead@db.internal/bulkhead"
    if not (parts.hostname or "host" in query):
        return "expected a host in the URL, as postgresql://user@HOST/database"
    if not (parts.path.strip("/") or "dbname" in query):
        return "expected a database in the URL, as postgresql://user@host/DATABASE"
    return ""


def has_password(url: str) -> bool:
    """Whether there is one in the URL itself."""
    parts = urlsplit(url)
    return bool(parts.password) or "password" in parse_qs(parts.query)
