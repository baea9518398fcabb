"""Where a store is: a file of SQLite's, or a database of a PostgreSQL server."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue
from urllib.parse import unquote, urlsplit, urlunsplit

from gateway.store.sql import Session


class Postgres:
    """A PostgreSQL database. What is printed of it has no password."""

    def __init__(self, url: str, password: str = "") -> None:
        parts = urlsplit(url)
        self.password = password or unquote(parts.password or "")
        user = parts.username or ""
        place = parts.netloc.rpartition("@")[2]
        self.url = urlunsplit(parts._replace(netloc=f"{user}@{place}" if user else place))
        self.idle: SimpleQueue[Session] = SimpleQueue()  # for reading; see `kept_sessions`

    def __str__(self) -> str:
        return urlunsplit(urlsplit(self.url)._replace(query=""))

    def __repr__(self) -> str:
        return f"Postgres({str(self)!r})"

    def close(self) -> None:
        """End the sessions that are kept."""
        while not self.idle.empty():
            self.idle.get().close()

    def without_password(self, text: str) -> str:
        """A message that may be shown."""
        return text.replace(self.password, "…") if self.password else text


Database = Path | Postgres
