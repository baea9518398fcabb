"""Ids of our own: a prefix that says what it names, and a ULID.

A ULID is 48 bits of milliseconds and 80 more; of ours, 20 carry the fraction of the millisecond and
60 are random. The time is the monotonic clock, pinned to the wall clock once: within a process, ids
sort in the order they were made even if somebody sets the machine's clock back, without any state.
"""

from __future__ import annotations

import secrets
import time
from base64 import b32encode

_RFC_4648 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_CROCKFORD = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_TO_CROCKFORD = bytes.maketrans(_RFC_4648, _CROCKFORD)
_ULID_LEN = 26
_PROCESS_EPOCH_NS = time.time_ns() - time.monotonic_ns()
_NS_PER_MS = 1_000_000


def new_id(prefix: str) -> str:
    """A fresh id such as `ur_01JD…`: `prefix`, an underscore, 26 characters."""
    milliseconds, fraction_ns = divmod(_PROCESS_EPOCH_NS + time.monotonic_ns(), _NS_PER_MS)
    return f"{prefix}_{_base32(milliseconds << 80 | fraction_ns << 60 | secrets.randbits(60))}"


def _base32(number: int) -> str:
    """The last 26 of the 32 digits that 20 bytes make."""
    digits = b32encode(number.to_bytes(20)).translate(_TO_CROCKFORD)
    return digits[-_ULID_LEN:].decode()
