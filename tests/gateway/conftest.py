"""Stores for tests, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.store.address import Database, Postgres
from gateway.store.migrate import migrate
from tests.postgres import Server


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An empty store of this version's schema."""
    if request.param == "sqlite":
        migrate(tmp_path / "store.db")
        yield tmp_path / "store.db"
        return
    server: Server = request.getfixturevalue("postgres_server")
    address = Postgres(server.new_database(migrated=True))
    yield address
    address.close()
