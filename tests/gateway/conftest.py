"""Stores for tests, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.store.address import Database, Postgres
from gateway.store.migrate import migrate
from tests import postgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Server]:
    """One server for all tests of a process; each has a database of its own."""
    with postgres.server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An empty store of this version's schema."""
    if request.param == "sqlite":
        migrate(tmp_path / "store.db")
        yield tmp_path / "store.db"
        return
    server: postgres.Server = request.getfixturevalue("postgres_server")
    address = Postgres(server.new_database(migrated=True))
    yield address
    address.close()
