"""An export's memory is that of a page, however many rows there are."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from gateway.store.connection import open_for_writing, transaction
from gateway.store.migrate import migrate
from gateway.usage import charges, parquet, records
from gateway.usage.export import FORMATS, Export, Form, Format, Granularity
from gateway.usage.selection import Selection
from tests.gateway.usage.history import DECEMBER, NAMES, OCTOBER, History


def peak(chunks: Iterator[bytes]) -> int:
    """The most bytes that Python and Arrow held at once."""
    tracemalloc.start()
    most = 0
    try:
        for _ in chunks:
            most = max(most, tracemalloc.get_traced_memory()[1] + pa.total_allocated_bytes())
            tracemalloc.reset_peak()
    finally:
        tracemalloc.stop()
    return most


@pytest.mark.parametrize(
    ("fmt", "granularity"), [*((fmt, "request") for fmt in FORMATS), ("focus", "hour")]
)
def test_twice_the_rows_take_no_more_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fmt: Format, granularity: Granularity
) -> None:
    monkeypatch.setattr(charges, "PAGE_ROWS", 100)
    monkeypatch.setattr(records, "_PAGE_ROWS", 100)
    monkeypatch.setattr(parquet, "BATCH_ROWS", 50)
    monkeypatch.setattr(parquet, "GROUP_BATCHES", 2)
    peaks = []
    for count in (600, 1200):
        folder = tmp_path / str(count)
        folder.mkdir()
        path = folder / "store.db"
        migrate(path)
        with closing(open_for_writing(path)) as db, transaction(db):
            history = History(db)
            history.directory()
            history.requests(count, OCTOBER)
        form = Form(fmt, granularity=granularity)
        selection = Selection(OCTOBER, DECEMBER, 2**62)
        list(Export(path, selection, form, NAMES))  # caches fill
        peaks.append(peak(iter(Export(path, selection, form, NAMES))))
    assert peaks[1] < peaks[0] * 1.3
