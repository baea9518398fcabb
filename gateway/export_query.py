"""What a query asks to be exported, be it a tenant's or the operator's."""

from __future__ import annotations

from functools import partial
from typing import TypeVar

from gateway.errors import BadRequest, Unsupported
from gateway.store.address import Database
from gateway.store.reader import read
from gateway.usage.export import FORMATS, GRANULARITIES, VERSIONS, Export, Form
from gateway.usage.names import Names
from gateway.usage.parquet import NoParquet
from gateway.usage.selection import NoSuchBound, Selection, bound_of, checked_bound
from gateway.usage_period import period_of

KNOWN = ("start_time", "end_time", "format", "focus_version", "granularity", "bound")
CONTENT_TYPES = {
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/jsonl",
    "focus": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
}
SEQ_BOUND = "x-bulkhead-seq-bound"  # the header that says up to which record an export goes
MAX_SEQ = 2**63 - 1

T = TypeVar("T", bound=str)


def export_of(
    query: dict[str, str],
    database: Database,
    whose: tuple[str | None, str | None],
    names: Names,
    now_us: int,
) -> Export:
    """The export, not begun; `whose` are ids of a tenant and a project, None being all.

    Asks the store for the bound. Raises BadRequest, Unsupported or StoreUnavailable.
    """
    start_us, end_us = period_of(query, now_us)
    form = Form(
        _choice(query, "format", FORMATS),
        _choice(query, "focus_version", VERSIONS),
        _choice(query, "granularity", GRANULARITIES),
    )
    bound = _bound(query, database, start_us, end_us)
    try:
        return Export(database, Selection(start_us, end_us, bound, *whose), form, names)
    except NoParquet:
        raise Unsupported(
            "format: this gateway has no Parquet; its operator can install it", param="format"
        ) from None


def _choice(query: dict[str, str], name: str, choices: tuple[T, ...]) -> T:
    """A parameter that is one of a few; the first of them if it wasn't sent."""
    value = query.get(name, choices[0])
    if value not in choices:
        raise BadRequest(f"{name}: expected one of {', '.join(choices)}", param=name)
    return value


def _bound(query: dict[str, str], database: Database, start_us: int, end_us: int) -> int:
    text = query.get("bound")
    if text is None:
        return read(database, partial(bound_of, start_us=start_us, end_us=end_us))
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= MAX_SEQ):
        raise BadRequest("bound: expected a whole number, as a manifest tells it", param="bound")
    try:
        return read(database, partial(checked_bound, bound=int(text)))
    except NoSuchBound as fault:
        raise BadRequest(f"bound: {fault}", param="bound") from None
