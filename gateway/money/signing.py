"""Checkpoints in the store: made once a day, by whichever gateway is first."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.ids import new_id
from gateway.money.checkpoints import Body, Head, Signed, sign
from gateway.money.sealing import Sealer, heads_of, last_sealed
from gateway.store.sql import Connection

EVERY_US = 24 * 3_600_000_000


def checkpoint(db: Connection, key: Ed25519PrivateKey, now_us: int) -> Signed:
    """Seal what is left, and sign where all chains stand. Runs inside a transaction."""
    sealer = Sealer()
    while sealer.seal(db):
        pass
    tenants = [row[0] for row in db.execute("SELECT id FROM tenant ORDER BY id").fetchall()]
    heads = [
        Head(tenant_id=tenant_id, chain_seq=chain_seq, hash=hash_.hex())
        for tenant_id, (chain_seq, hash_) in heads_of(db, tenants).items()
    ]
    before = last_checkpoint(db)
    body = Body(
        at=now_us,
        seq=last_sealed(db),
        heads=heads,
        amounts={row[0]: str(int(row[1])) for row in db.execute(_AMOUNTS).fetchall()},
        before=before.digest() if before else "",
    )
    signed = sign(body, key)
    values = {"id": new_id("cp"), "at": now_us, "body": signed.text.decode()}
    db.execute(_KEEP, values | {"signature": signed.signature})
    return signed


def is_due(db: Connection, now_us: int) -> bool:
    """Whether the last one is a day old, and something was closed since."""
    (last,) = db.execute("SELECT max(at) FROM checkpoint").fetchone()
    if last is not None and now_us - int(last) < EVERY_US:
        return False
    (newest,) = db.execute("SELECT seq FROM ledger_counter WHERE id = 1").fetchone()
    return bool(newest)


def last_checkpoint(db: Connection) -> Signed | None:
    """The newest one in the store."""
    row = db.execute(_LAST).fetchone()
    return Signed(row[0].encode(), bytes(row[1])) if row else None


_AMOUNTS = """
SELECT currency, sum(amount_pico / 1000000) * 1000000 + sum(amount_pico % 1000000)
FROM usage_rollup GROUP BY currency ORDER BY currency
"""
_KEEP = "INSERT INTO checkpoint (id, at, body, signature) VALUES (:id, :at, :body, :signature)"
_LAST = "SELECT body, signature FROM checkpoint ORDER BY at DESC, id DESC LIMIT 1"
