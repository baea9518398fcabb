"""Looking at a stack's usage from outside: rows of the export, and what the database holds."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import Any

from tests.stack import Stack


def exported(stack: Stack, **query: str) -> list[dict[str, Any]]:
    """The rows of the caller's export."""
    with stack.client() as client:
        answer = client.get("/v1/usage/export", params={"format": "jsonl"} | query)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def row_of(stack: Stack, request_id: str) -> dict[str, Any]:
    """The one row of a request."""
    rows = [row for row in exported(stack) if row["request_id"] == request_id]
    assert len(rows) == 1, f"{len(rows)} rows for {request_id}"
    return rows[0]


def records(stack: Stack) -> list[dict[str, Any]]:
    """All records of the database, open ones too."""
    path = stack.state / "bulkhead.db"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        db.row_factory = sqlite3.Row
        return [dict(row) for row in db.execute("SELECT * FROM usage_record")]
