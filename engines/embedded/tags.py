"""The tag of a page: who owns it, and since which allocation. One 64-bit word.

`tag = domain_slot:16 | generation:48`. Generations come from one counter of the whole pool, so no
two allocations ever share a tag, not even of different pages.
"""

from __future__ import annotations

GENERATION_BITS = 48
GENERATION_LIMIT = (1 << GENERATION_BITS) - (1 << 32)  # refuse long before it could wrap
SYSTEM_SLOT = 0  # free pages and the null page
QUARANTINE_SLOT = 0xFFFF
NULL_TAG = 0  # of the null page, for ever


def pack(domain_slot: int, generation: int) -> int:
    """Compose a tag."""
    assert 0 <= domain_slot <= QUARANTINE_SLOT
    assert 0 <= generation < 1 << GENERATION_BITS
    return domain_slot << GENERATION_BITS | generation


def domain_slot(tag: int) -> int:
    """The owner's part of a tag."""
    return tag >> GENERATION_BITS


def generation(tag: int) -> int:
    """The allocation's part of a tag."""
    return tag & ((1 << GENERATION_BITS) - 1)
