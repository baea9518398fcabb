"""Statements about many rows by their ids. They come in few lengths, so that few are prepared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.store.sql import Connection

LENGTHS = (1, 4, 16, 64)


def of_ids(sql: str) -> dict[int, str]:
    """The statement for each length, `(:ids)` in it written out."""
    return {
        length: sql.replace("(:ids)", f"({', '.join(f':id{n}' for n in range(length))})")
        for length in LENGTHS
    }


def rows_of(db: Connection, sql: Mapping[int, str], ids: Sequence[str]) -> list[Any]:
    """All rows that a statement made by `of_ids` returns for these."""
    rows: list[Any] = []
    at = 0
    while at < len(ids):
        left = len(ids) - at
        length = next((one for one in LENGTHS if one >= left), LENGTHS[-1])
        some = ids[at : at + length]
        # what there is room for beyond the last is the last once more
        values = {f"id{n}": some[min(n, len(some) - 1)] for n in range(length)}
        rows += db.execute(sql[length], values).fetchall()
        at += length
    return rows
