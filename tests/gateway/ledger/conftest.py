"""A ledger over a real store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gateway.ledger import Ledger
from gateway.store.connection import open_for_writing
from gateway.store.migrate import migrate
from gateway.store.writer import Writer
from tests.gateway.records import FakeClock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    migrate(path)
    with closing(open_for_writing(path)) as db:
        db.execute("INSERT INTO tenant VALUES ('tn_1', 'acme', 0, 0)")
        db.execute("INSERT INTO api_key VALUES ('key_1', 'tn_1', x'01', 'h', 'n', 0, NULL)")
    return path


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
