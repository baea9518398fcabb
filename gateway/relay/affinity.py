"""Which place a session's requests go to, so that they find the prefix that is cached there.

By rendezvous hashing: each place draws a number for the session, and the highest wins; where a
place comes or goes, only its own sessions move. A session is a hash over the tenant's domain, so no
tenant can aim at another's.
"""

from __future__ import annotations

import hashlib
import math

# A session goes elsewhere when its place has this many more tokens in flight than the least busy.
SLACK_TOKENS = 8192


def session_of(domain: str, named: str) -> str:
    """The session that a client names, as no other tenant's can be; "" if it names none."""
    if not named:
        return ""
    return hashlib.sha256(f"{domain}\0{named}".encode()).hexdigest()


def score(session: str, place: str, weight: int) -> float:
    """A place's draw for a session; with twice the weight it wins twice as often."""
    digest = hashlib.blake2b(f"{session}\0{place}".encode(), digest_size=8).digest()
    share = (int.from_bytes(digest) + 1) / (2**64 + 1)  # between 0 and 1, neither included
    return -weight / math.log(share)
