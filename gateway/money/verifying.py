"""Whether the ledger is still what was sealed: every chain read from its start, record by record.

Found is what was changed, removed, added or moved since. Who rewrites a whole chain makes one that
fits together: that shows only against a checkpoint that was kept elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from gateway.money.chain import GENESIS, LINE, RECORD, Row, columns, is_link
from gateway.money.checkpoints import BadCheckpoint, Body, Signed
from gateway.money.sealing import last_sealed
from gateway.store.sql import Connection

PAGE = 500
_ID, _SEQ = 3 + RECORD.index("id"), 3 + RECORD.index("seq")  # in a row of _PAGE

Kind = Literal["changed", "deleted", "inserted", "moved", "checkpoint"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that isn't as it was sealed."""

    kind: Kind
    says: str
    tenant_id: str = ""
    record_id: str = ""
    chain_seq: int = 0


@dataclass(slots=True)
class Verified:
    """How much was looked at."""

    records: int = 0
    chains: int = 0
    checkpoints: int = 0


def verify(
    db: Connection, key: Ed25519PublicKey, kept: Iterable[Signed], counts: Verified
) -> Iterator[Finding]:
    """All that is wrong. `kept` are checkpoints from elsewhere; `counts` grows meanwhile."""
    for (tenant_id,) in db.execute("SELECT id FROM tenant ORDER BY id").fetchall():
        counts.chains += 1
        yield from _chain(db, tenant_id, counts)
    yield from _unsealed(db)
    yield from _gaps(db)
    before = ""
    for body, signature in db.execute(_CHECKPOINTS).fetchall():
        signed = Signed(body.encode(), bytes(signature))
        counts.checkpoints += 1
        yield from _checkpoint(db, key, signed, "a checkpoint in the store", before)
        before = signed.digest()
    for signed in kept:
        counts.checkpoints += 1
        yield from _checkpoint(db, key, signed, "the checkpoint that was kept", None)


def _chain(db: Connection, tenant_id: str, counts: Verified) -> Iterator[Finding]:
    before, expected, last_seq = GENESIS, 1, 0
    while rows := _page(db, tenant_id, expected - 1):
        values = {"tenant_id": tenant_id, "first": rows[0][0], "last": rows[-1][0]}
        lines = _by_record(db.execute(_LINES, values).fetchall())
        for row in rows:
            chain_seq, hash_, record_id = row[:3]
            where = {"tenant_id": tenant_id, "record_id": record_id, "chain_seq": chain_seq}
            if chain_seq != expected:
                says = f"{chain_seq - expected} seals are missing before this one"
                yield Finding("deleted", says, **where)
            counts.records += 1
            if row[_ID] is None:
                yield Finding("deleted", "a sealed record isn't there any more", **where)
            else:
                if not is_link(bytes(hash_), before, row[3:], lines.get(record_id, ())):
                    yield Finding("changed", "it isn't what was sealed at its place", **where)
                if row[_SEQ] is not None and row[_SEQ] <= last_seq:
                    yield Finding("moved", "it was closed before the one that it follows", **where)
                last_seq = row[_SEQ] or last_seq
            before, expected = bytes(hash_), chain_seq + 1


def _page(db: Connection, tenant_id: str, after: int) -> Sequence[Any]:
    return db.execute(_PAGE, {"tenant_id": tenant_id, "after": after, "page": PAGE}).fetchall()


def _by_record(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Lines whose first column is their record's id, without it."""
    found: dict[str, list[Row]] = {}
    for record_id, *line in rows:
        found.setdefault(str(record_id), []).append(line)
    return found


def _unsealed(db: Connection) -> Iterator[Finding]:
    """Closed records among the sealed ones that have no seal."""
    for record_id, tenant_id in db.execute(_UNSEALED, {"last": last_sealed(db)}):
        yield Finding("inserted", "a closed record that was never sealed", tenant_id, record_id)


def _gaps(db: Connection) -> Iterator[Finding]:
    """Numbers that were given to closed records which aren't there."""
    for first, last in gaps(db):
        numbers = f"number {first}" if first == last else f"numbers {first} to {last}"
        yield Finding("deleted", f"closed records are missing: {numbers}")


def gaps(db: Connection) -> Iterator[tuple[int, int]]:
    """Where the numbers of closed records have gaps: the first and the last that is missing."""
    (newest,) = db.execute("SELECT seq FROM ledger_counter WHERE id = 1").fetchone()
    count, highest = db.execute(_NUMBERED).fetchone()
    if count == highest == newest:
        return
    after = 0
    for (seq,) in db.execute(_AFTER_GAPS):
        below = db.execute(_BELOW, {"seq": seq}).fetchone()[0]
        yield int(below) + 1, int(seq) - 1
        after = int(seq)
    if max(highest, after) < newest:
        yield int(highest) + 1, int(newest)


def _checkpoint(
    db: Connection, key: Ed25519PublicKey, signed: Signed, name: str, before: str | None
) -> Iterator[Finding]:
    try:
        body = signed.body(key)
    except BadCheckpoint as fault:
        yield Finding("checkpoint", f"{name}: {fault}")
        return
    if before is not None and body.before != before:
        yield Finding("checkpoint", f"{name} doesn't follow the one before it")
    yield from _heads(db, body, name)


def _heads(db: Connection, body: Body, name: str) -> Iterator[Finding]:
    for head in body.heads:
        values = {"tenant_id": head.tenant_id, "chain_seq": head.chain_seq}
        row = db.execute(_HASH, values).fetchone()
        if row is None:
            says = f"{name} knows {head.chain_seq} records of it: the last are gone"
            yield Finding("deleted", says, head.tenant_id, chain_seq=head.chain_seq)
        elif bytes(row[0]).hex() != head.hash:
            says = f"{name} knows another chain: it was made anew"
            yield Finding("changed", says, head.tenant_id, chain_seq=head.chain_seq)


_PAGE = f"""
SELECT s.chain_seq, s.hash, s.record_id, {columns(RECORD, "r")}
FROM seal AS s LEFT JOIN usage_record AS r ON r.id = s.record_id
WHERE s.tenant_id = :tenant_id AND s.chain_seq > :after ORDER BY s.chain_seq LIMIT :page
"""  # noqa: S608 - our own names
_LINES = f"""
SELECT l.record_id, {columns(LINE, "l")}
FROM seal AS s JOIN usage_line AS l ON l.record_id = s.record_id
WHERE s.tenant_id = :tenant_id AND s.chain_seq >= :first AND s.chain_seq <= :last
ORDER BY s.chain_seq, l.line_no
"""  # noqa: S608 - our own names
_UNSEALED = """
SELECT r.id, r.tenant_id FROM usage_record AS r
WHERE r.seq <= :last AND NOT EXISTS (SELECT 1 FROM seal AS s WHERE s.record_id = r.id)
ORDER BY r.seq
"""
_NUMBERED = "SELECT count(*), coalesce(max(seq), 0) FROM usage_record WHERE seq IS NOT NULL"
_AFTER_GAPS = """
SELECT r.seq FROM usage_record AS r
WHERE r.seq > 1 AND NOT EXISTS (SELECT 1 FROM usage_record AS b WHERE b.seq = r.seq - 1)
ORDER BY r.seq
"""
_BELOW = "SELECT coalesce(max(seq), 0) FROM usage_record WHERE seq < :seq"
_CHECKPOINTS = "SELECT body, signature FROM checkpoint ORDER BY at, id"
_HASH = "SELECT hash FROM seal WHERE tenant_id = :tenant_id AND chain_seq = :chain_seq"
