"""A request's opening and its settlement, and how they lie in the store."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from gateway.billing import Outcome, UsageSource
from gateway.prices import Terms, TokenPrices, Usage
from gateway.record import Opening, Settlement
from gateway.store.address import Database
from gateway.store.connection import open_for_reading, open_for_writing
from gateway.store.migrate import migrate
from gateway.store.sql import dicts
from tests.gateway.accounts import add_key, add_tenant

OPENING = Opening(
    request_id="req_1",
    tenant_id="tn_1",
    api_key_id="key_1",
    operation="chat",
    model_id="m",
    model_revision="rev",
    terms=Terms.of(TokenPrices("USD", input=10, cached_input=1, output=100)),
    streamed=True,
)
COMPLETED = Settlement(
    outcome=Outcome.COMPLETED,
    usage=Usage(7, 5, 3),
    usage_source=UsageSource.UPSTREAM_FINAL,
    status_code=200,
    finish_reason="stop",
    host_id="host_1",
    first_token_at=1_500,
)
LINES = (
    "SELECT record_id, line_no, sku_id, token_class, quantity, price_pico, amount_pico"
    " FROM usage_line ORDER BY record_id, line_no"
)
AMOUNT = 2 * 10 + 5 * 1 + 3 * 100


def new_store(folder: Path) -> Path:
    """A store with one tenant and one key, those of OPENING."""
    path = folder / "store.db"
    migrate(path)
    fill(path)
    return path


def fill(database: Database) -> None:
    """Give a store that tenant and that key."""
    with closing(open_for_writing(database)) as db:
        add_tenant(db)
        add_key(db)


class FakeClock:
    def __init__(self) -> None:
        self.us = 1_000

    def now_us(self) -> int:
        return self.us


def row(path: Database, record_id: str) -> dict[str, object]:
    with closing(open_for_reading(path)) as db:
        query = "SELECT * FROM usage_record WHERE id = :id"
        (found,) = dicts(db.execute(query, {"id": record_id}))
        return found


def line_rows(path: Database) -> list[tuple[object, ...]]:
    with closing(open_for_reading(path)) as db:
        return db.execute(LINES).fetchall()
