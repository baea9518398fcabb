"""Ids of our own: a prefix that says what it names, and a ULID.

A ULID is 48 bits of milliseconds and 80 more; of ours, 20 carry the fraction of the millisecond and
60 are random. The time is the monotonic clock, pinned to the wall clock once: within a process, ids
sort in the order they were made even if somebody sets the machine's clock back, without any state.
"""

from __future__ import annotations

import os
import random
import time
from functools import lru_cache
from itertools import product

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = ["".join(pair) for pair in product(_CROCKFORD, repeat=2)]  # of each 10 bits
_PROCESS_EPOCH_NS = time.time_ns() - time.monotonic_ns()
_NS_PER_MS = 1_000_000

# An id must differ from all others, and be no secret: a generator of the process, seeded by the
# system, is as good as asking the system each time, and needs no call to it.
_chance = random.Random(os.urandom(32))  # noqa: S311
os.register_at_fork(after_in_child=lambda: _chance.seed(os.urandom(32)))


def new_id(prefix: str) -> str:
    """A fresh id such as `ur_01JD…`: `prefix`, an underscore, 26 characters."""
    milliseconds, fraction_ns = divmod(_PROCESS_EPOCH_NS + time.monotonic_ns(), _NS_PER_MS)
    # Written out: each request has several ids, and numbers of 128 bits take their time.
    high, low = _chance.getrandbits(30), _chance.getrandbits(30)
    return (
        f"{prefix}_{_when(milliseconds)}{_PAIRS[fraction_ns >> 10]}{_PAIRS[fraction_ns & 1023]}"
        f"{_PAIRS[high >> 20]}{_PAIRS[high >> 10 & 1023]}{_PAIRS[high & 1023]}"
        f"{_PAIRS[low >> 20]}{_PAIRS[low >> 10 & 1023]}{_PAIRS[low & 1023]}"
    )


@lru_cache(1)
def _when(milliseconds: int) -> str:
    """The first ten digits, the same for all ids of a millisecond."""
    return "".join([_PAIRS[milliseconds >> shift & 1023] for shift in range(40, -1, -10)])
