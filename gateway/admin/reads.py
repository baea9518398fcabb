"""What the admin API reads from the store: the last requests, and the tenants. Never a secret."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from gateway.admin.pages import limit_of, told
from gateway.admin.problems import BadParameter, StoreUnreachable
from gateway.admin.query import Pairs, single
from gateway.store.address import Database
from gateway.store.errors import StoreError
from gateway.store.reader import read_in_thread
from gateway.store.sql import Connection, dicts
from gateway.usage.calendar import microseconds

RECORD = r"ur_[0-9A-Z]{1,32}"
NEWEST = "~"  # sorts after every id


async def requests(database: Database, after: str, limit: int) -> dict[str, Any]:
    """A page of requests, the newest first: those before the record `after`."""

    def query(db: Connection) -> list[dict[str, Any]]:
        rows = db.execute(_REQUESTS, {"after": after, "limit": limit + 1})
        return [_request(row) for row in dicts(rows)]

    found = await _read(database, query)
    return told(found[:limit], has_more=len(found) > limit)


async def tenants(database: Database) -> list[dict[str, Any]]:
    """All tenants, by name, with how many live keys each has."""

    def query(db: Connection) -> list[dict[str, Any]]:
        return [
            {
                "id": id_,
                "object": "tenant",
                "name": name,
                "demo": bool(is_demo),
                "timezone": timezone,
                "weight": weight,
                "disabled_at": moment(disabled_at),
                "created_at": moment(created_at),
                "live_keys": live_keys,
            }
            for id_, name, is_demo, timezone, weight, disabled_at, created_at, live_keys in (
                db.execute(_TENANTS)
            )
        ]

    return await _read(database, query)


def page_of(query: Pairs) -> tuple[str, int]:
    """`after` and `limit` of a query string. Raises BadParameter."""
    given = single(query, ("after", "limit"))
    limit, after = limit_of(given.get("limit", "20")), given.get("after")
    if after is not None and not re.fullmatch(RECORD, after):
        raise BadParameter(
            f"after: expected a record's id, as the last_id of a page, found {after[:64]!r}"
        )
    return after or NEWEST, limit


def moment(us: int | None) -> str | None:
    """A time of the store for people and machines: RFC 3339, UTC."""
    return None if us is None else microseconds(us)


async def _read(
    database: Database, query: Callable[[Connection], list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    try:
        return await read_in_thread(database, query)
    except StoreError:
        raise StoreUnreachable(
            "the store can't be read; is there a gateway on this machine?"
        ) from None


def _request(row: dict[str, Any]) -> dict[str, Any]:
    opened, first, ended = row.pop("opened_at"), row.pop("first_token_at"), row.pop("ended_at")
    return row | {
        "object": "request",
        "streamed": bool(row["streamed"]),
        "billable": None if row["billable"] is None else bool(row["billable"]),
        "opened_at": moment(opened),
        "ended_at": moment(ended),
        "ttft_ms": None if first is None else round((first - opened) / 1000, 1),
        "duration_ms": None if ended is None else round((ended - opened) / 1000, 1),
    }


# A record's id begins with its time, so that the primary key is the order.
_REQUESTS = """
SELECT usage_record.id, request_id, state, outcome, status_code AS status,
  tenant_id AS tenant, tenant.name AS tenant_name, api_key_id AS key,
  model_id AS model, operation, streamed, host_id AS host, finish_reason,
  input_tokens, cached_input_tokens, output_tokens, usage_source, billable, bill_reason,
  opened_at, first_token_at, ended_at
FROM usage_record JOIN tenant ON tenant.id = usage_record.tenant_id
WHERE usage_record.id < :after
ORDER BY usage_record.id DESC LIMIT :limit
"""

_TENANTS = """
SELECT tenant.id, tenant.name, is_demo, timezone, weight, disabled_at, tenant.created_at,
  COUNT(api_key.id) FILTER (WHERE api_key.revoked_at IS NULL)
FROM tenant LEFT JOIN api_key ON api_key.tenant_id = tenant.id
GROUP BY tenant.id ORDER BY tenant.name
"""
