"""Rows as Parquet: exact decimals, times in UTC, zstd; a row group at a time in memory.

The same rows give the same bytes with the same version of pyarrow, which the file names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from engines.extras import how_to_install
from gateway.usage.decimals import exact
from gateway.usage.focus_columns import PLACES, Column, Kind, Row

BATCH_ROWS = 1024  # as Python's objects at once
GROUP_BATCHES = 32


class NoParquet(Exception):
    """pyarrow isn't installed."""


def parquet(
    rows: Iterable[Row], columns: Sequence[Column], footer: Callable[[], Mapping[str, str]]
) -> Iterator[bytes]:
    """The file in pieces. `footer`, its metadata, is asked for after the last row.

    Raises NoParquet.
    """
    pa, pq = _pyarrow()
    schema = pa.schema([(column.name, _type(pa, column.kind)) for column in columns])
    sink, rows = _Sink(), iter(rows)
    writer = pq.ParquetWriter(pa.PythonFile(sink, mode="w"), schema, compression="zstd")
    with writer:
        while batches := [
            _batch(pa, schema, columns, some) for some in islice(_in_batches(rows), GROUP_BATCHES)
        ]:
            writer.write_table(pa.Table.from_batches(batches))
            yield sink.take()
        writer.add_key_value_metadata(dict(footer()))
    yield sink.take()


def need_pyarrow() -> None:
    """Raises NoParquet, before anything was begun."""
    _pyarrow()


class _Sink:
    """Keeps what is written until it's taken."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, part: Any) -> int:
        self._parts.append(bytes(part))
        return len(part)

    def flush(self) -> None:
        """Nothing waits."""

    def take(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


def _in_batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    while some := list(islice(rows, BATCH_ROWS)):
        yield some


def _batch(pa: Any, schema: Any, columns: Sequence[Column], rows: list[Row]) -> Any:
    """Columns out of rows."""
    arrays = [
        pa.array([_in_arrow(column.kind, value) for value in values], type=field.type)
        for column, field, values in zip(columns, schema, zip(*rows, strict=True), strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _in_arrow(kind: Kind, value: Any) -> Any:
    if value is None or kind in ("text", "count", "time"):
        return value
    return exact(value, PLACES.get(kind, 0))


def _type(pa: Any, kind: Kind) -> Any:
    match kind:
        case "text":
            return pa.string()
        case "count":
            return pa.int64()
        case "time":
            return pa.timestamp("us", tz="UTC")
        case "price":
            return pa.decimal128(38, 16)
        case _:
            return pa.decimal128(38, 12)


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise NoParquet(
            f"Parquet files need pyarrow, an extra: {how_to_install('parquet')}"
        ) from None
    return pa, pq
