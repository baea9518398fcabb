"""Where a list goes on, as a text that a client keeps and can't make up: sealed with a MAC.

It's bound to the question that it belongs to, so that it goes on with that one and no other.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any, TypeVar

import msgspec

MAC_BYTES = 16

T = TypeVar("T")


class BadCursor(Exception):
    """Not a cursor of ours, or one of another question."""


class Cursors:
    """Seals places in lists, and opens them again; on every replica, with the same key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, place: Any, question: Any) -> str:
        """`place` in the list that answers `question`; both are made of JSON's types."""
        data = msgspec.json.encode(place)
        return base64.urlsafe_b64encode(self._mac(data, question) + data).decode().rstrip("=")

    def open(self, text: str, question: Any, kind: type[T]) -> T:
        """The place. Raises BadCursor."""
        try:
            sealed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            mac, data = sealed[:MAC_BYTES], sealed[MAC_BYTES:]
            if not hmac.compare_digest(mac, self._mac(data, question)):
                raise BadCursor
            return msgspec.json.decode(data, type=kind)
        except (ValueError, msgspec.MsgspecError):
            raise BadCursor from None

    def _mac(self, data: bytes, question: Any) -> bytes:
        asked = msgspec.json.encode(question, order="sorted")
        sealed = len(asked).to_bytes(8) + asked + data
        return hmac.digest(self._key, sealed, hashlib.sha256)[:MAC_BYTES]
