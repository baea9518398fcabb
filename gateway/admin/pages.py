"""Lists, a page at a time: `limit` rows after the one with the id `after`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from gateway.admin.problems import BadParameter
from gateway.admin.query import Pairs, single

MAX_LIMIT = 100


def page_of(rows: Sequence[dict[str, Any]], query: Pairs) -> dict[str, Any]:
    """The page that is asked for, of rows in a lasting order. Raises BadParameter."""
    given = single(query, ("after", "limit"))
    limit = limit_of(given.get("limit", str(MAX_LIMIT)))
    start = 0
    if (after := given.get("after")) is not None:
        ids = [row["id"] for row in rows]
        if after not in ids:
            raise BadParameter(f"after: there is no {after[:64]!r} in this list")
        start = ids.index(after) + 1
    return told(list(rows[start : start + limit]), has_more=len(rows) > start + limit)


def told(rows: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """A page, as lists are told."""
    return {
        "object": "list",
        "data": rows,
        "first_id": rows[0]["id"] if rows else None,
        "last_id": rows[-1]["id"] if rows else None,
        "has_more": has_more,
    }


def limit_of(text: str) -> int:
    """Raises BadParameter."""
    if not (re.fullmatch(r"[1-9][0-9]{0,2}", text) and int(text) <= MAX_LIMIT):
        raise BadParameter(f"limit: expected 1 to {MAX_LIMIT}, found {text[:64]!r}")
    return int(text)
