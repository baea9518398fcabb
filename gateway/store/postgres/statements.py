"""`:name`, as SQLite has it, becomes `%(name)s`, as psycopg has it. Once for each statement."""

from __future__ import annotations

import re
from functools import lru_cache

from gateway.store.sql import TOKEN


@lru_cache(maxsize=1024)
def for_psycopg(sql: str) -> str:
    """The same statement; a percent sign stands for itself."""
    return "".join(_piece(token) for token in TOKEN.finditer(sql))


@lru_cache(maxsize=256)
def in_places(sql: str) -> str:
    """The same statement for rows of values, in the order of their names."""
    return "".join("%s" if token[1] else _piece(token) for token in TOKEN.finditer(sql))


def _piece(token: re.Match[str]) -> str:
    return f"%({token[1]})s" if token[1] else token[0].replace("%", "%%")
