"""Packing of tags."""

from __future__ import annotations

from hypothesis import given, strategies as st

from engines.embedded import tags


@given(st.integers(0, 0xFFFF), st.integers(0, (1 << 48) - 1))
def test_a_tag_gives_back_both_of_its_parts(slot: int, generation: int) -> None:
    """Packing loses nothing and fits 64 bits."""
    tag = tags.pack(slot, generation)
    assert tag < 1 << 64
    assert (tags.domain_slot(tag), tags.generation(tag)) == (slot, generation)


def test_generations_end_long_before_they_could_wrap() -> None:
    """2^32 generations are left when the pool refuses."""
    assert tags.GENERATION_LIMIT + (1 << 32) == 1 << 48
