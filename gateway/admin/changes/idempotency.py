"""`Idempotency-Key`: a change that is sent again is made once, and answered alike.

The answer is kept for a day beside the change, in its transaction, sealed: it may hold a new
secret. See draft-ietf-httpapi-idempotency-key-header-07.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gateway.admin.problems import BadHeader, KeyReused
from gateway.store.sql import Connection
from runtime.keyring import Keyring

KEPT_US = 24 * 3600 * 1_000_000
LABEL = "idempotency"
_NONCE = 12
_KEY = re.compile(r"[\x21-\x7e]{1,255}")


class Answer(NamedTuple):
    """A change's status and body."""

    status: int
    body: bytes


class Once:
    """One call's name, and what it says."""

    def __init__(self, root: Keyring, actor: str, key: str, said: bytes) -> None:
        """`said`: the method, the path and the body. Raises BadHeader."""
        if not _KEY.fullmatch(key):
            raise BadHeader("Idempotency-Key: expected 1 to 255 visible ASCII characters")
        self._actor = actor
        self._key = key
        self._fingerprint = hashlib.sha256(said).hexdigest()
        self._sealing = AESGCM(root.derive(LABEL))

    def answered(self, db: Connection, now_us: int) -> Answer | None:
        """What it was answered before, if it was. Raises KeyReused if it said something else."""
        db.execute(_FORGET, {"before": now_us - KEPT_US})
        values = {"actor": self._actor, "key": self._key}
        row = db.execute(_FIND, values).fetchone()
        if row is None:
            return None
        fingerprint, status, sealed = row
        if fingerprint != self._fingerprint:
            raise KeyReused("Idempotency-Key: it was sent with another request; use a new one")
        try:
            body = self._sealing.decrypt(sealed[:_NONCE], sealed[_NONCE:], self._bound())
        except InvalidTag:  # sealed by another root secret: the change was made, all the same
            raise KeyReused(
                "Idempotency-Key: the change was made, but its answer can't be read any more"
            ) from None
        return Answer(status, body)

    def keep(self, db: Connection, answer: Answer, now_us: int) -> None:
        """Keep the answer, beside the change."""
        nonce = secrets.token_bytes(_NONCE)
        sealed = nonce + self._sealing.encrypt(nonce, answer.body, self._bound())
        values = {
            "actor": self._actor,
            "key": self._key,
            "fingerprint": self._fingerprint,
            "now": now_us,
            "status": answer.status,
            "response": sealed,
        }
        db.execute(_KEEP, values)

    def _bound(self) -> bytes:
        return f"{self._actor}\n{self._key}\n{self._fingerprint}".encode()


_FORGET = "DELETE FROM idempotency WHERE created_at < :before"
_FIND = """
SELECT fingerprint, status_code, response FROM idempotency WHERE actor = :actor AND key = :key
"""
_KEEP = """
INSERT INTO idempotency (actor, key, fingerprint, created_at, status_code, response)
VALUES (:actor, :key, :fingerprint, :now, :status, :response)
"""
