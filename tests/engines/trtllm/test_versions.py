"""Releases in their order, and what came with which."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

from engines.trtllm.manifest import has
from engines.trtllm.versions import CHUNKS, FLOOR, HOOK, OVERLAP, Version, parsed

IN_ORDER = [
    "0.20.0", "1.0.0rc4", "1.0.0", "1.2.0rc6.post2", "1.2.0", "1.2.1rc1", "1.2.1", "1.2.1.post1",
    "1.3.0rc0", "1.3.0rc5", "1.3.0rc5.post2", "1.3.0rc12", "1.3.0rc22", "1.3.0rc29", "1.3.0",
    "1.4.0rc0", "1.4.0rc1", "1.10.0", "2.0.0",
]  # fmt: skip


def test_releases_come_in_order_and_are_written_as_they_were_read() -> None:
    versions = [parsed(text) for text in IN_ORDER]
    assert versions == sorted(versions)
    assert [str(version) for version in versions] == IN_ORDER


@pytest.mark.parametrize(
    "text",
    ["", "1", "1.2", "1.2.1.0", "v1.2.1", "1.2.1a1", "1.2.1rc", "1.2.1 ", " 1.2.1", "1.2.1\n",
     "latest", "1.2.1+cu130", "-1.2.1", "1.2.x", "99999.0.0", "\u0661.2.1"],
)  # fmt: skip
def test_what_is_no_release_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no release of TensorRT-LLM"):
        parsed(text)


@given(st.text(max_size=20))
def test_no_text_breaks_it(text: str) -> None:
    with suppress(ValueError):
        assert isinstance(parsed(text), Version)


def test_what_came_with_which() -> None:
    """Before the release that surely has it, nothing is promised."""
    assert next(text for text in IN_ORDER if parsed(text) >= FLOOR) == "1.2.1"
    assert next(text for text in IN_ORDER if parsed(text).has_safe_overlap) == "1.3.0rc22"
    assert next(text for text in IN_ORDER if has(text, "post_processor_hook")) == str(HOOK)
    chunked = [text for text in IN_ORDER if parsed(text) >= FLOOR and parsed(text).has_safe_chunks]
    assert chunked[:3] == ["1.2.1", "1.2.1.post1", "1.3.0rc12"]
    assert max(CHUNKS, HOOK, OVERLAP) == HOOK == OVERLAP
