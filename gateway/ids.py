"""Ids of our own: a prefix that says what it names, and a ULID.

A ULID is 48 bits of milliseconds and 80 more; of ours, 20 carry the fraction of the millisecond and
60 are random. The time is the monotonic clock, pinned to the wall clock once: within a process, ids
sort in the order they were made even if somebody sets the machine's clock back, without any state.
"""

from __future__ import annotations

import os
import random
import time
from itertools import product

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = ["".join(pair) for pair in product(_CROCKFORD, repeat=2)]  # of each 10 bits
_SHIFTS = range(120, -1, -10)
_PROCESS_EPOCH_NS = time.time_ns() - time.monotonic_ns()
_NS_PER_MS = 1_000_000

# An id must differ from all others, and be no secret: a generator of the process, seeded by the
# system, is as good as asking the system each time, and needs no call to it.
_chance = random.Random(os.urandom(32))  # noqa: S311
os.register_at_fork(after_in_child=lambda: _chance.seed(os.urandom(32)))


def new_id(prefix: str) -> str:
    """A fresh id such as `ur_01JD…`: `prefix`, an underscore, 26 characters."""
    milliseconds, fraction_ns = divmod(_PROCESS_EPOCH_NS + time.monotonic_ns(), _NS_PER_MS)
    number = milliseconds << 80 | fraction_ns << 60 | _chance.getrandbits(60)
    return f"{prefix}_{''.join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])}"
