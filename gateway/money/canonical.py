"""Canonical JSON (RFC 8785) of what the ledger holds: one text for one value, anywhere.

A subset of what the RFC knows: keys are ASCII, so that their order is plain, and numbers are whole
ones up to 2^53 - 1, which every reader of JSON reads as they are. Amounts are written as text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

MAX_INT = 2**53 - 1


def canonical(value: Any) -> bytes:
    """The one UTF-8 text of a value. Raises ValueError for one that has none here."""
    _check(value)
    try:
        return _encode(value)
    except UnicodeEncodeError:
        raise ValueError("a text with half a character has no canonical form") from None


def _check(value: object) -> None:
    if value is None or isinstance(value, bool | str):
        return
    if isinstance(value, int):
        if not -MAX_INT <= value <= MAX_INT:
            raise ValueError(f"{value} is too large a number; write it as text")
    elif isinstance(value, Mapping):
        for key, one in value.items():
            if not (isinstance(key, str) and key.isascii()):
                raise ValueError(f"{key!r} is no key here: write ASCII")
            _check(one)
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        for one in value:
            _check(one)
    else:
        raise ValueError(f"{type(value).__name__} has no canonical form here")


# It escapes just what the RFC escapes, in lower case.
_encode = msgspec.json.Encoder(order="sorted").encode
