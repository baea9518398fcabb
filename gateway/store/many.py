"""Statements about many rows by their ids. They come in few lengths, so that few are prepared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.store.sql import Connection

LENGTHS = (1, 4, 16, 64)
_NAMES = tuple(f"id{n}" for n in range(LENGTHS[-1]))


def of_ids(sql: str) -> dict[int, str]:
    """The statement for each length, `(:ids)` in it written out."""
    return {
        length: sql.replace("(:ids)", f"({', '.join(f':{name}' for name in _NAMES[:length])})")
        for length in LENGTHS
    }


def rows_of(db: Connection, sql: Mapping[int, str], ids: Sequence[str]) -> list[Any]:
    """All rows that a statement made by `of_ids` returns for these."""
    rows: list[Any] = []
    at = 0
    while at < len(ids):
        left = len(ids) - at
        length = next((one for one in LENGTHS if one >= left), LENGTHS[-1])
        some = list(ids[at : at + length])
        some += some[-1:] * (length - len(some))  # what there is room for is the last once more
        values = dict(zip(_NAMES, some, strict=False))
        rows += db.execute(sql[length], values).fetchall()
        at += length
    return rows
