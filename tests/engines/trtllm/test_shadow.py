"""The shadow ledger, one thing at a time: what it takes, and what it tells."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engines.trtllm import violations as kinds
from engines.trtllm.rows import Scheduled
from engines.trtllm.shadow import Shadow
from engines.trtllm.violations import Violation

SIZE = 4
PROMPT = list(range(100, 110))  # two blocks and two tokens


@pytest.fixture
def shadow() -> Shadow:
    return Shadow(SIZE, requires_salt=True, num_blocks=16)


def begins(
    shadow: Shadow,
    request: int,
    salt: str | int | None,
    blocks: Sequence[int],
    computed: int = 0,
    prompt: Sequence[int] = PROMPT,
) -> list[Violation]:
    """It is given its blocks, and its whole prompt is computed in one step."""
    told = shadow.allocated(request, salt, blocks, computed, prompt)
    return told + shadow.step([first(request, blocks, computed, prompt)])


def first(
    request: int, blocks: Sequence[int], computed: int = 0, prompt: Sequence[int] = PROMPT
) -> Scheduled:
    return Scheduled(request, blocks, computed, len(prompt) - computed, prompt)


def decodes(request: int, position: int, *new_blocks: int) -> Scheduled:
    return Scheduled(request, new_blocks, position, 1, [7])


def kinds_of(told: list[Violation]) -> set[tuple[int, str]]:
    return {(violation.request, violation.kind) for violation in told}


def test_a_request_that_has_its_own_blocks_is_right(shadow: Shadow) -> None:
    assert begins(shadow, 1, "a", [3, 1, 2]) == []
    assert shadow.step([decodes(1, 10)]) == []
    assert shadow.step([decodes(1, 11)]) == []
    assert shadow.step([decodes(1, 12, 9)]) == []
    assert shadow.finished(1, [3, 1, 2, 9]) == []
    assert (shadow.counters.steps, shadow.counters.checked) == (4, 3 + 3 + 3 + 4)


def test_a_hit_of_the_same_salt_is_right(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    assert begins(shadow, 2, "a", [3, 1, 4], computed=8) == []


def test_a_hit_of_another_salt_is_told_before_it_is_read(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    told = shadow.allocated(2, "b", [3, 1, 4], 8, PROMPT)
    assert [(v.request, v.kind, v.block, v.step) for v in told] == [(2, kinds.FOREIGN, 3, 2)]


def test_a_hit_on_other_tokens_is_told(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    other = [*PROMPT[:5], 0, *PROMPT[6:]]
    told = shadow.allocated(2, "a", [3, 1, 4], 8, other)
    assert [(v.kind, v.block) for v in told] == [(kinds.CONTENT, 1)]


def test_a_block_of_two_rows_is_told_to_both(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    assert shadow.allocated(2, "b", [5, 6, 2], 0, PROMPT) == []
    told = shadow.step([first(2, [5, 6, 2]), decodes(1, 10)])
    assert kinds_of(told) == {(1, kinds.STALE), (2, kinds.DOUBLE)}


def test_who_was_cancelled_needs_no_notice(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    assert begins(shadow, 2, "b", [1, 2, 3]) == []
    assert kinds_of(shadow.step([decodes(1, 10)])) == {(1, kinds.STALE), (2, kinds.DOUBLE)}


def test_a_violation_names_the_salt_by_its_digest_alone(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    (by_text,) = shadow.allocated(2, "secret", [3, 1, 4], 8)
    (by_number,) = shadow.allocated(3, 2**64 - 1, [3, 1, 5], 8)
    assert (by_text.salt, by_text.salt_id) == ("2bb80d537b1da3e38bd30361aa855686", None)
    assert (by_number.salt, by_number.salt_id) == (None, "f" * 16)
