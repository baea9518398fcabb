"""What the shadow ledger finds wrong, in words that a journal keeps.

Nothing here holds a token, a text or a salt: only ids, and a digest of the salt.
"""

from __future__ import annotations

from typing import NamedTuple

# Of the row that is told; the block is the first one concerned, or -1.
FOREIGN = "foreign"  # a prefix hit on a block of another salt
CONTENT = "content"  # a prefix hit on a block that holds other tokens
UNWRITTEN = "unwritten"  # a prefix hit on a block that nobody has computed to its end
UNPROVEN = "unproven"  # a hit within a block on tokens that no block of its salt holds
SPOILED = "spoiled"  # a prefix hit on a block that a row in violation had
STALE = "stale"  # a block of the row was given to another request since
DOUBLE = "double"  # a block of the row is in the row of another that still runs
OUTSIDE = "outside"  # a block that the pool doesn't have
UNSALTED = "unsalted"  # no salt, where each request must have one
UNKNOWN = "unknown"  # runs without ever having been given blocks
SHORT = "short"  # more tokens than its blocks hold
HIDDEN = "hidden"  # has blocks that nobody told of: its id was there before, with more of them
SKIPPED = "skipped"  # counts tokens as computed that it never computed
SHARED = "shared"  # would write into a block that it may only read
UNBACKED = "unbacked"  # would write to a page that isn't there
REPLACED = "replaced"  # its list of blocks isn't the one that it was given

KINDS = (
    FOREIGN,
    CONTENT,
    UNWRITTEN,
    UNPROVEN,
    SPOILED,
    STALE,
    DOUBLE,
    OUTSIDE,
    UNSALTED,
    UNKNOWN,
    SHORT,
    HIDDEN,
    SKIPPED,
    SHARED,
    UNBACKED,
    REPLACED,
)


class Violation(NamedTuple):
    """One thing wrong with one request: told once for each kind."""

    request: int
    kind: str
    block: int  # -1 where it isn't about one
    step: int  # the number of the step, from 1; of what comes between two steps, the next one's
    salt: str | None  # its digest, where the salt itself was known
    salt_id: str | None  # 16 hex digits, where only TensorRT-LLM's number of it was


class CoverageLost(RuntimeError):
    """A step checked fewer blocks than its rows have: the guard itself is broken."""
