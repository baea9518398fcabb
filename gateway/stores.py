"""Which database an installation's store is."""

from __future__ import annotations

from functools import lru_cache

from gateway.store.address import Database, Postgres
from gateway.store.connection import DATABASE
from runtime.config.place import Place
from runtime.store_place import store_place


def database_of(place: Place) -> Database:
    """Its file in the state folder, or the PostgreSQL database that it names.

    Raises ConfigError if the config file names one that can't be.
    """
    found = store_place(place)
    return _postgres(found.url, found.password) if found.url else place.state_dir / DATABASE


def is_there(database: Database) -> bool:
    """Whether it was made; of a server's, that is for the server to say."""
    return isinstance(database, Postgres) or database.exists()


@lru_cache(maxsize=8)
def _postgres(url: str, password: str) -> Postgres:
    """One object for one database, since it keeps sessions."""
    return Postgres(url, password)
