"""Seals closed records into their tenants' chains, a moment after they were closed.

In the order in which they were closed (`seq`, which has no gaps): whatever comes after the last one
that is sealed isn't yet. Each batch is one of the writer's jobs, so that several gateways on one
store take turns, and one that finds its records sealed goes on behind them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gateway.money.chain import GENESIS, RECORD, Row, columns, lines_of, link
from gateway.store.sql import Connection

BATCH = 100  # records in one transaction: two milliseconds of the writer's time

Heads = dict[str, tuple[int, bytes]]  # a chain's length and its last link, by tenant


class Sealer:
    """Knows up to where all is sealed, so that nothing is looked up while nothing is closed."""

    def __init__(self) -> None:
        self._last: int | None = None  # the `seq` of the record that was sealed last

    def seal(self, db: Connection, most: int = BATCH) -> int:
        """Seal the next records; how many there were. Runs inside a transaction."""
        (newest,) = db.execute(_NEWEST).fetchone()
        if newest == self._last:
            return 0
        if self._last is None or not self._is_ours(db, self._last):
            self._last = last_sealed(db)
        records = closed_after(db, self._last, most)
        if records:
            _seal(db, records)
            self._last = _seq(records[-1])
        return len(records)

    def _is_ours(self, db: Connection, last: int) -> bool:
        """Whether it's still the last one: another gateway may have sealed more, a restore less."""
        found = db.execute(_SEALED_BESIDE, {"last": last}).fetchall()
        return found == [(last,)] or (last == 0 and not found)

    def forget(self) -> None:
        """A transaction may have been lost: look again."""
        self._last = None


def last_sealed(db: Connection) -> int:
    """The `seq` up to which all records are sealed."""
    tenants = [row[0] for row in db.execute("SELECT id FROM tenant").fetchall()]
    found = (db.execute(_LAST_SEQ, {"tenant_id": tenant}).fetchone() for tenant in tenants)
    return max((int(row[0]) for row in found if row is not None), default=0)


def heads_of(db: Connection, tenants: Iterable[str]) -> Heads:
    """The ends of these tenants' chains, of those that have one."""
    rows = ((one, db.execute(_HEAD, {"tenant_id": one}).fetchone()) for one in tenants)
    return {one: (int(row[0]), bytes(row[1])) for one, row in rows if row is not None}


def closed_after(db: Connection, seq: int, most: int) -> list[Row]:
    """The records that were closed after that one, in order."""
    return db.execute(_CLOSED, {"seq": seq, "most": most}).fetchall()


def _seal(db: Connection, records: Sequence[Row]) -> None:
    heads = heads_of(db, sorted({_tenant(record) for record in records}))
    seals = []
    for record in records:
        tenant_id = _tenant(record)
        chain_seq, before = heads.get(tenant_id, (0, GENESIS))
        head = link(before, record, lines_of(record))
        heads[tenant_id] = chain_seq + 1, head
        seals.append((tenant_id, chain_seq + 1, _id(record), head))
    db.executemany(_SEAL, seals)


_TENANT, _ID, _SEQ = map(RECORD.index, ("tenant_id", "id", "seq"))


def _tenant(record: Row) -> str:
    return str(record[_TENANT])


def _id(record: Row) -> str:
    return str(record[_ID])


def _seq(record: Row) -> int:
    seq = record[_SEQ]
    assert isinstance(seq, int)
    return seq


_NEWEST = "SELECT seq FROM ledger_counter WHERE id = 1"
_SEALED_BESIDE = """
SELECT r.seq FROM usage_record AS r JOIN seal AS s ON s.record_id = r.id
WHERE r.seq >= :last AND r.seq <= :last + 1
"""
_HEAD = """
SELECT chain_seq, hash FROM seal WHERE tenant_id = :tenant_id ORDER BY chain_seq DESC LIMIT 1
"""
_LAST_SEQ = """
SELECT r.seq FROM usage_record AS r WHERE r.id =
  (SELECT record_id FROM seal WHERE tenant_id = :tenant_id ORDER BY chain_seq DESC LIMIT 1)
"""
_CLOSED = f"""
SELECT {columns(RECORD, "r")} FROM usage_record AS r WHERE seq > :seq ORDER BY seq LIMIT :most
"""  # noqa: S608 - our own names
_SEAL = """
INSERT INTO seal (tenant_id, chain_seq, record_id, hash)
VALUES (:tenant_id, :chain_seq, :record_id, :hash)
"""
