"""The charges of a selection, read from the ledger's lines: an hour together, or record by record.

Read in pieces, each with a snapshot of its own: memory is bounded by what one hour has of different
callers, models and prices, and a slow reader holds up nobody.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.store.address import Database
from gateway.store.reader import read
from gateway.store.sql import Connection
from gateway.usage.calendar import HOUR_US
from gateway.usage.charge import Charge
from gateway.usage.selection import Selection

PAGE_ROWS = 1000


def by_hour(database: Database, selection: Selection) -> Iterator[list[Charge]]:
    """What was charged in each hour, in order. A correction is never added to what it corrects.

    Raises StoreUnavailable.
    """
    statement = _HOURLY.format(where=selection.where())
    first = _FIRST.format(where=selection.where())

    def hour(db: Connection, begins_us: int) -> tuple[int, list[Charge]]:
        until_us = begins_us - begins_us % HOUR_US + HOUR_US
        span = {"from_us": begins_us, "until_us": until_us, "hour_us": HOUR_US}
        rows = db.execute(statement, selection.values() | span).fetchall()
        return until_us, sorted(map(_charge, rows))

    def query(db: Connection) -> tuple[int | None, list[Charge]]:
        """Some hours, and where to go on; None at the end."""
        charges: list[Charge] = []
        next_us: int | None = from_us
        while next_us is not None and len(charges) < PAGE_ROWS:
            (begins_us,) = db.execute(first, selection.values() | {"from_us": next_us}).fetchone()
            if begins_us is None:
                return None, charges
            next_us, some = hour(db, begins_us)
            charges += some
        return next_us, charges

    from_us: int | None = selection.start_us
    while from_us is not None:
        from_us, charges = read(database, query)
        yield charges


def by_record(database: Database, selection: Selection) -> Iterator[list[Charge]]:
    """Each line of each record, in the order of time. Raises StoreUnavailable."""
    statement = _ONE_BY_ONE.format(where=selection.where())

    def query(db: Connection) -> list[tuple[int, ...]]:
        values = selection.values() | {"hour_us": HOUR_US, "rows": PAGE_ROWS}
        after_us, after_seq, after_line = after
        place = {"after_us": after_us, "after_seq": after_seq, "after_line": after_line}
        return db.execute(statement, values | place).fetchall()

    after = (selection.start_us, -1, 0)
    while rows := read(database, query):
        yield [_charge(row[3:]) for row in rows]
        after = rows[-1][0], rows[-1][1], rows[-1][2]


def _charge(row: tuple[object, ...]) -> Charge:
    return Charge(*row)  # type: ignore[arg-type] # the columns of _WHAT, in the order of its fields


_WHAT = """
  r.tenant_id, coalesce(r.project_id, ''), coalesce(r.api_key_id, ''), r.model_id, l.token_class,
  l.sku_id, r.currency, coalesce(r.price_version_id, ''), coalesce(r.list_price_version_id, ''),
  l.price_pico, coalesce(l.list_price_pico, -1), coalesce(r.corrects, ''),
  {record}, coalesce(r.reason, ''),
  coalesce(c.charge_at, r.charge_at) / :hour_us * :hour_us, r.charge_at / :hour_us * :hour_us,
  t.name, coalesce(p.name, '')
"""

_FROM = """
FROM usage_record r
JOIN usage_line l ON l.record_id = r.id
JOIN tenant t ON t.id = r.tenant_id
LEFT JOIN project p ON p.id = r.project_id
LEFT JOIN usage_record c ON c.id = r.corrects
"""

_FIRST = "SELECT min(r.charge_at) FROM usage_record r WHERE r.charge_at >= :from_us AND {where}"

_ONE = "r.id, r.request_id, coalesce(r.subject, '')"
_CORRECTION = "CASE WHEN r.corrects IS NULL THEN '' ELSE r.id END, '', ''"
_GROUPS = ", ".join(str(number) for number in range(1, 21))

_HOURLY = f"""
SELECT {_WHAT.replace("{record}", _CORRECTION)}, sum(l.quantity), count(*), min(r.seq), max(r.seq)
{_FROM}
WHERE r.charge_at >= :from_us AND r.charge_at < :until_us AND {{where}}
GROUP BY {_GROUPS}
"""

_ONE_BY_ONE = f"""
SELECT r.charge_at, r.seq, l.line_no, {_WHAT.replace("{record}", _ONE)}, l.quantity, 1, r.seq, r.seq
{_FROM}
WHERE r.charge_at >= :after_us
  AND (r.charge_at, r.seq, l.line_no) > (:after_us, :after_seq, :after_line) AND {{where}}
ORDER BY r.charge_at, r.seq, l.line_no LIMIT :rows
"""
