"""A ledger over a real store, whose tenant gets budgets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.ledger import Ledger
from gateway.store.writer import Writer
from tests.gateway.records import FakeClock, new_store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return new_store(tmp_path)


@pytest.fixture
def writer(path: Path) -> Iterator[Writer]:
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
