"""A ledger over a real store, on each database; its tenant gets budgets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.ledger import Ledger
from gateway.store.address import Database
from gateway.store.writer import Writer
from tests.gateway.records import FakeClock, fill


@pytest.fixture
def path(database: Database) -> Database:
    fill(database)
    return database


@pytest.fixture
def writer(path: Database) -> Iterator[Writer]:
    writer = Writer(path)
    writer.start()
    yield writer
    writer.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def ledger(writer: Writer, clock: FakeClock) -> Ledger:
    return Ledger(writer, clock, "boot_1")
