"""The shadow ledger, one thing at a time: what it takes, and what it tells."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engines.trtllm import violations as kinds
from engines.trtllm.roll import MOST_DEPARTED
from engines.trtllm.rows import Scheduled
from engines.trtllm.salts import digest
from engines.trtllm.shadow import CoverageLost, Shadow
from engines.trtllm.violations import Violation

SIZE = 4
PROMPT = list(range(100, 110))  # two blocks and two tokens
Told = list[Violation]


@pytest.fixture
def shadow() -> Shadow:
    return Shadow(SIZE, requires_salt=True, num_blocks=16)


def first(
    request: int, blocks: Sequence[int], computed: int = 0, prompt: Sequence[int] = PROMPT
) -> Scheduled:
    return Scheduled(request, blocks, computed, len(prompt) - computed, prompt)


def begins(
    shadow: Shadow,
    request: int,
    salt: str | int | None,
    blocks: Sequence[int],
    computed: int = 0,
    prompt: Sequence[int] = PROMPT,
) -> Told:
    """It is given its blocks, and its whole prompt is computed in one step."""
    told = shadow.allocated(request, salt, blocks, computed, prompt)
    return told + shadow.step([first(request, blocks, computed, prompt)])


def decodes(request: int, position: int, *new_blocks: int) -> Scheduled:
    return Scheduled(request, new_blocks, position, 1, [7])


def kinds_of(told: Told) -> set[tuple[int, str]]:
    return {(violation.request, violation.kind) for violation in told}


# What is right


def test_a_request_that_has_its_own_blocks_is_right(shadow: Shadow) -> None:
    assert begins(shadow, 1, "a", [3, 1, 2]) == []
    assert shadow.step([decodes(1, 10)]) == []
    assert shadow.step([decodes(1, 11)]) == []
    assert shadow.step([decodes(1, 12, 9)]) == []
    assert shadow.finished(1, [3, 1, 2, 9]) == []


def test_every_block_of_every_row_is_checked_in_every_step(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    begins(shadow, 2, "b", [4, 5, 6])
    shadow.step([decodes(1, 10), decodes(2, 10)])
    assert (shadow.counters.steps, shadow.counters.checked) == (3, 3 + 3 + 6)
    shadow.step([])
    assert (shadow.counters.steps, shadow.counters.checked) == (4, 12)


def test_a_step_that_checks_less_than_its_rows_have_is_an_error(
    shadow: Shadow, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    begins(shadow, 2, "b", [4, 5, 6])
    monkeypatch.setattr("engines.trtllm.shadow.np.concatenate", lambda rows, axis: rows[0])
    with pytest.raises(CoverageLost, match="3 blocks checked of 2 rows"):
        shadow.step([decodes(1, 10), decodes(2, 10)])


def test_a_hit_of_the_same_salt_is_right(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    assert begins(shadow, 2, "a", [3, 1, 4], computed=8) == []


def test_a_prompt_may_be_computed_by_chunks(shadow: Shadow) -> None:
    shadow.allocated(1, "a", [3, 1, 2], 0, PROMPT)
    assert shadow.step([Scheduled(1, [3, 1, 2], 0, 4, PROMPT)]) == []
    assert shadow.step([Scheduled(1, [], 4, 4)]) == []
    assert shadow.step([]) == []
    assert shadow.step([Scheduled(1, [], 8, 2)]) == []
    assert shadow.step([decodes(1, 10)]) == []


def test_who_was_cancelled_needs_no_notice(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    assert begins(shadow, 2, "b", [1, 2, 3]) == []


def test_who_is_in_no_step_for_long_comes_back(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    for request in range(2, 4 * MOST_DEPARTED):
        begins(shadow, request, "b", [4, 5, 6])
    assert shadow.step([decodes(1, 10)]) == []


def test_a_request_may_begin_anew(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    said = [*PROMPT, 7]
    assert shadow.allocated(1, "a", [4, 5, 6], 0, said) == []
    assert shadow.step([Scheduled(1, [], 0, 11, [7])]) == []
    assert shadow.step([decodes(1, 11)]) == []
    assert shadow.step([decodes(1, 12, 8)]) == []


def test_a_step_more_after_the_end_is_no_fault(shadow: Shadow) -> None:
    """The overlap scheduler hears of an end when the next step is on its way."""
    begins(shadow, 1, "a", [3, 1, 2])
    shadow.finished(1)
    assert shadow.step([decodes(1, 10)]) == []
    assert shadow.step([]) == []


def test_a_page_that_is_gone_is_no_block(shadow: Shadow) -> None:
    assert shadow.allocated(1, "a", [-1, 3, 2], 0, PROMPT) == []
    shadow.step([first(1, [-1, 3, 2])])
    checked = shadow.counters.checked
    assert shadow.step([Scheduled(1, [], 10, 1, [7], table=[-1, -1, 2])]) == []
    assert shadow.counters.checked == checked + 1
    begins(shadow, 2, "b", [3, 4, 5])
    assert shadow.step([decodes(1, 11)]) == []


# A row's prefix


def test_a_hit_of_another_salt_is_told_before_it_is_read(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    told = shadow.allocated(2, "b", [3, 1, 4], 8, PROMPT)
    assert [(v.request, v.kind, v.block, v.step) for v in told] == [(2, kinds.FOREIGN, 3, 2)]


def test_what_another_salt_found_is_no_hit_for_its_own_any_more(shadow: Shadow) -> None:
    """The block may be where a copy went: then what its salt wrote there is gone."""
    begins(shadow, 1, "a", [3, 1, 2])
    shadow.allocated(2, "b", [3, 1, 4], 8, PROMPT)
    assert shadow.step([decodes(1, 10)]) == []  # for what it is told of is another's hit
    assert kinds_of(shadow.allocated(3, "a", [3, 5, 6], 4, PROMPT)) == {(3, kinds.SPOILED)}
    assert kinds_of(shadow.allocated(4, "a", [7, 8, 9], 2, PROMPT)) == {(4, kinds.UNPROVEN)}


def test_what_was_found_to_hold_other_tokens_is_no_hit_any_more(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    shadow.allocated(2, "a", [3, 1, 4], 8, [*PROMPT[:5], 0, *PROMPT[6:]])
    assert kinds_of(shadow.allocated(3, "a", [3, 1, 6], 8, PROMPT)) == {(3, kinds.SPOILED)}


def test_a_hit_on_what_nobody_wrote_is_told(shadow: Shadow) -> None:
    told = shadow.allocated(2, "b", [3, 1, 4], 8, PROMPT)
    assert kinds_of(told) == {(2, kinds.UNWRITTEN)}


def test_a_hit_on_other_tokens_is_told(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    told = shadow.allocated(2, "a", [3, 1, 4], 8, [*PROMPT[:5], 0, *PROMPT[6:]])
    assert [(v.kind, v.block) for v in told] == [(kinds.CONTENT, 1)]


def test_a_hit_on_the_same_tokens_after_others_is_told(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2, 8], prompt=[0, 1, 2, 3, *PROMPT])
    begins(shadow, 2, "a", [4, 5, 6])
    told = shadow.allocated(3, "a", [4, 2, 7], 8, PROMPT)
    assert [(v.kind, v.block) for v in told] == [(kinds.CONTENT, 2)]


def test_a_hit_of_another_adapter_is_told(shadow: Shadow) -> None:
    shadow.allocated(1, "a", [3, 1, 2], 0, PROMPT, 5)
    shadow.step([first(1, [3, 1, 2])])
    assert shadow.allocated(2, "a", [3, 1, 4], 8, PROMPT, 5) == []
    assert kinds_of(shadow.allocated(3, "a", [3, 1, 4], 8, PROMPT, 6)) == {(3, kinds.CONTENT)}


def test_a_hit_on_what_was_answered_is_compared_too(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    shadow.step([decodes(1, 10)])
    shadow.step([decodes(1, 11)])
    shadow.finished(1)
    said = [*PROMPT, 7, 7]
    assert shadow.allocated(2, "a", [3, 1, 2, 4], 12, [*said, 1]) == []
    other = [*PROMPT, 7, 8]
    assert kinds_of(shadow.allocated(3, "a", [3, 1, 2, 5], 12, [*other, 1])) == {(3, kinds.CONTENT)}


def test_a_hit_on_what_is_not_computed_is_told(shadow: Shadow) -> None:
    shadow.allocated(1, "a", [3, 1, 2], 0, PROMPT)
    shadow.step([Scheduled(1, [3, 1, 2], 0, 4, PROMPT)])
    assert begins(shadow, 2, "a", [3, 4, 5], computed=4) == []
    assert kinds_of(begins(shadow, 3, "a", [3, 1, 6], computed=8)) == {(3, kinds.UNWRITTEN)}


def test_a_hit_on_what_is_computed_in_the_same_step_is_right(shadow: Shadow) -> None:
    shadow.allocated(1, "a", [3, 1, 2], 0, PROMPT)
    shadow.allocated(2, "a", [3, 1, 4], 8, PROMPT)
    assert shadow.step([first(1, [3, 1, 2]), first(2, [3, 1, 4], 8)]) == []


def test_a_hit_on_what_was_never_computed_to_its_end_is_told(shadow: Shadow) -> None:
    shadow.allocated(1, "a", [3, 1, 2], 0, PROMPT)
    shadow.step([Scheduled(1, [3, 1, 2], 0, 4, PROMPT)])
    shadow.finished(1)
    shadow.step([])
    assert kinds_of(begins(shadow, 2, "a", [3, 1, 6], computed=8)) == {(2, kinds.UNWRITTEN)}


def test_a_hit_on_what_a_pass_that_broke_off_computed_is_told(shadow: Shadow) -> None:
    """TensorRT-LLM fails all its requests, and stores their blocks as if they were computed."""
    begins(shadow, 1, "a", [3, 1, 2], prompt=PROMPT[:5])
    shadow.allocated(2, "a", [3, 4, 5], 4, PROMPT)
    shadow.step([first(2, [3, 4, 5], 4)])
    shadow.failed()
    assert begins(shadow, 3, "a", [3, 6, 7], computed=4) == []
    assert kinds_of(begins(shadow, 4, "a", [3, 4, 8], computed=8)) == {
        (4, kinds.SPOILED),
        (4, kinds.UNWRITTEN),
    }


def test_a_hit_within_a_block_that_a_pass_broke_off_in_is_told(shadow: Shadow) -> None:
    """Though another block of the salt says the same: it may be taken over as it is."""
    begins(shadow, 1, "a", [3, 1, 2])
    shadow.allocated(2, "a", [3, 1, 4], 8, PROMPT)
    shadow.step([first(2, [3, 1, 4], 8)])
    shadow.failed()
    assert begins(shadow, 3, "a", [3, 1, 5], 9) == []
    assert kinds_of(begins(shadow, 4, "a", [3, 1, 4], 9)) == {(4, kinds.UNPROVEN)}


def test_a_hit_within_a_block_is_right_if_its_salt_has_said_so(shadow: Shadow) -> None:
    """Taken over as it is, or copied: the block's own past says nothing."""
    begins(shadow, 1, "a", [3, 1, 2])
    begins(shadow, 2, "b", [4, 5, 6], prompt=[1, 2])
    assert begins(shadow, 3, "a", [3, 1, 6], 9) == []
    shadow.finished(1)
    shadow.finished(3)
    assert begins(shadow, 4, "a", [3, 1, 2], 9) == []


def test_a_hit_within_a_block_on_what_its_salt_never_said_is_told(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2], prompt=PROMPT[:9])
    begins(shadow, 2, "b", [4, 5, 6])
    assert kinds_of(begins(shadow, 3, "a", [3, 1, 6], 9, [*PROMPT[:8], 5, 6])) == {
        (3, kinds.UNPROVEN)
    }
    assert kinds_of(begins(shadow, 4, "c", [7], 2, PROMPT[:3])) == {(4, kinds.UNPROVEN)}


def test_a_hit_within_a_block_of_unknown_text_is_counted(shadow: Shadow) -> None:
    shadow.allocated(1, "a", [3, 1, 2], 0)
    shadow.step([Scheduled(1, [3, 1, 2], 0, 10)])
    assert begins(shadow, 2, "a", [3, 1, 6], 9) == []
    assert shadow.counters.unproven == 1


def test_all_tokens_of_a_prompt_are_never_there(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    told = shadow.allocated(2, "a", [3, 1], 8, PROMPT[:8])
    assert kinds_of(told) == {(2, kinds.SKIPPED)}


# Whose a block is


def test_a_block_of_two_rows_is_told_to_both(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    assert shadow.allocated(2, "b", [5, 6, 2], 0, PROMPT) == []
    told = shadow.step([first(2, [5, 6, 2]), decodes(1, 10)])
    assert kinds_of(told) == {(1, kinds.STALE), (2, kinds.DOUBLE)}


def test_a_block_of_two_rows_that_is_not_their_last_is_told(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    shadow.allocated(2, "b", [5, 3, 6], 0, PROMPT)
    told = shadow.step([first(2, [5, 3, 6]), decodes(1, 10)])
    assert kinds_of(told) == {(1, kinds.STALE), (2, kinds.DOUBLE)}


def test_a_block_that_is_gained_and_was_anothers_is_told_to_both(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    begins(shadow, 2, "b", [4, 5, 6])
    for position in (10, 11):
        shadow.step([decodes(1, position), decodes(2, position)])
    told = shadow.step([decodes(1, 12, 5), decodes(2, 12, 7)])
    assert kinds_of(told) == {(2, kinds.STALE), (1, kinds.DOUBLE)}


def test_who_was_not_in_the_step_is_told_when_it_runs_again(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    begins(shadow, 2, "b", [5, 6, 2])
    assert kinds_of(shadow.step([decodes(1, 10)])) == {(1, kinds.STALE), (2, kinds.DOUBLE)}


def test_who_runs_on_after_its_end_has_a_name(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    shadow.finished(1)
    shadow.step([])
    begins(shadow, 2, "b", [5, 6, 2])
    told = shadow.step([decodes(1, 10)])
    assert kinds_of(told) == {(1, kinds.STALE), (2, kinds.DOUBLE)}
    assert told[0].salt == "ca978112ca1bbdcafac231b39a23dc4d"


def test_a_third_who_shares_the_block_is_told_too(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    begins(shadow, 2, "b", [3, 4, 5])
    begins(shadow, 3, "b", [3, 6, 7], computed=4)
    told = shadow.step([decodes(1, 10)])
    assert kinds_of(told) == {(1, kinds.STALE), (2, kinds.DOUBLE), (3, kinds.DOUBLE)}


def test_what_two_had_is_no_hit_for_anybody(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    begins(shadow, 2, "b", [3, 4, 5])
    shadow.step([decodes(1, 10)])
    assert kinds_of(shadow.allocated(3, "b", [3, 6, 7], 4, PROMPT)) == {(3, kinds.SPOILED)}


def test_what_a_row_writes_after_it_read_anothers_is_no_hit(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    begins(shadow, 2, "b", [3, 4, 5], computed=4)
    assert kinds_of(shadow.allocated(3, "b", [6, 4, 7], 8, PROMPT)) >= {(3, kinds.SPOILED)}


def test_a_block_twice_in_a_row_is_told(shadow: Shadow) -> None:
    assert kinds_of(begins(shadow, 1, "a", [3, 1, 3])) == {(1, kinds.STALE)}


def test_each_kind_is_told_once_a_row(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    begins(shadow, 2, "b", [3, 1, 2])
    assert len(shadow.step([decodes(1, 10)])) == 2
    assert shadow.step([decodes(1, 11)]) == []
    assert shadow.counters.violations == 2


# A row's place


def test_more_tokens_than_blocks_are_told(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    shadow.step([decodes(1, 10)])
    shadow.step([decodes(1, 11)])
    assert kinds_of(shadow.step([decodes(1, 12)])) == {(1, kinds.SHORT)}


def test_tokens_that_nobody_computed_are_told(shadow: Shadow) -> None:
    shadow.allocated(1, "a", [3, 1, 2], 0, PROMPT)
    shadow.step([Scheduled(1, [3, 1, 2], 0, 4, PROMPT)])
    assert kinds_of(shadow.step([Scheduled(1, [], 8, 2)])) == {(1, kinds.SKIPPED)}


def test_a_write_to_what_is_shared_is_told_to_all_who_share(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    shadow.allocated(2, "a", [3, 1, 4], 8, PROMPT)
    told = shadow.step([Scheduled(2, [3, 1, 4], 4, 6, PROMPT), decodes(1, 10)])
    assert kinds_of(told) >= {(2, kinds.SHARED), (1, kinds.STALE)}


def test_a_write_to_no_page_is_told(shadow: Shadow) -> None:
    shadow.allocated(1, "a", [3, 1, -1], 0, PROMPT)
    assert kinds_of(shadow.step([first(1, [3, 1, -1])])) == {(1, kinds.UNBACKED)}


def test_a_block_that_the_pool_does_not_have_is_told(shadow: Shadow) -> None:
    told = shadow.allocated(1, "a", [3, 16, 2], 0, PROMPT)
    assert [(v.kind, v.block) for v in told] == [(kinds.OUTSIDE, 16)]
    assert kinds_of(shadow.allocated(2, "a", [3, -2, 2], 0, PROMPT)) == {(2, kinds.OUTSIDE)}


def test_a_list_that_changed_since_it_was_given_is_told(shadow: Shadow) -> None:
    shadow.allocated(1, "a", [3, 1, 2], 0, PROMPT)
    assert kinds_of(shadow.step([first(1, [3, 5, 2])])) == {(1, kinds.REPLACED)}


def test_a_list_that_changed_shows_where_it_can_be_had(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    whole = decodes(1, 10)._replace(table=[3, 1, 2])
    assert shadow.step([whole]) == []
    told = shadow.step([decodes(1, 11)._replace(table=[3, 5, 2])])
    assert [(v.kind, v.block) for v in told] == [(kinds.REPLACED, 5)]


def test_a_list_that_changed_shows_at_the_end(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    told = shadow.finished(1, [3, 5, 2])
    assert [(v.kind, v.block) for v in told] == [(kinds.REPLACED, 5)]


def test_whole_lists_show_what_deltas_hide(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    shadow.allocated(1, "a", [4], 0, PROMPT[:4])
    told = shadow.step([Scheduled(1, [], 0, 4, table=[4])])
    told += shadow.step([Scheduled(1, [], 4, 1, table=[4, 5])])
    assert told == []
    begins(shadow, 2, "b", [5, 6, 7])
    told = shadow.step([Scheduled(1, [], 5, 1, table=[4, 5])])
    assert kinds_of(told) == {(1, kinds.STALE), (2, kinds.DOUBLE)}


def test_what_deltas_hide_is_told(shadow: Shadow) -> None:
    """An id that had three blocks before isn't told of its second."""
    begins(shadow, 1, "a", [3, 1, 2])
    shadow.allocated(1, "a", [4], 0, PROMPT[:4])
    assert shadow.step([Scheduled(1, [], 0, 4)]) == []
    assert kinds_of(shadow.step([Scheduled(1, [], 4, 1)])) == {(1, kinds.HIDDEN)}


# Who


def test_a_request_without_a_salt_is_told(shadow: Shadow) -> None:
    assert kinds_of(begins(shadow, 1, None, [3, 1, 2])) == {(1, kinds.UNSALTED)}
    careless = Shadow(SIZE, requires_salt=False)
    assert begins(careless, 1, None, [3, 1, 2]) == []


def test_a_request_that_was_never_given_blocks_is_told(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    told = shadow.step([Scheduled(2, [3, 5], 0, 8, PROMPT), decodes(1, 10)])
    assert kinds_of(told) == {(2, kinds.UNKNOWN), (1, kinds.STALE)}


def test_a_violation_names_the_salt_by_its_digest_alone(shadow: Shadow) -> None:
    begins(shadow, 1, "a", [3, 1, 2])
    (by_text,) = shadow.allocated(2, "secret", [3, 1, 4], 8)
    (by_number,) = shadow.allocated(3, 2**64 - 1, [3, 1, 5], 8)
    assert (by_text.salt, by_text.salt_id) == ("2bb80d537b1da3e38bd30361aa855686", None)
    assert (by_number.salt, by_number.salt_id) == (None, "f" * 16)


def test_a_pool_without_a_known_size_grows_as_ids_are_seen() -> None:
    shadow = Shadow(SIZE, requires_salt=True)
    begins(shadow, 1, "a", [3, 5000, 2])
    assert shadow.step([decodes(1, 10)]) == []
    assert begins(shadow, 2, "a", [3, 5000, 90_000], computed=8) == []
    shadow.set_pool(90_000)
    assert kinds_of(shadow.allocated(3, "a", [90_000], 0, PROMPT[:3])) == {(3, kinds.OUTSIDE)}


def test_a_block_of_no_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Shadow(0, requires_salt=True)


# What is remembered


def test_what_is_remembered_is_bounded() -> None:
    shadow = Shadow(SIZE, requires_salt=True, num_blocks=16)
    for request in range(4 * MOST_DEPARTED):  # cancelled, all of them
        assert begins(shadow, request, "a", [request % 13, 14, 15]) == []
        assert shadow.num_remembered <= MOST_DEPARTED + 16


def test_what_is_seen_elsewhere_names_its_salt_and_is_no_hit(shadow: Shadow) -> None:
    """Or every tenant's requests would end for it; and it computed with others' blocks."""
    begins(shadow, 1, "a", [3, 1, 2])
    (one,) = shadow.seen_elsewhere(1, "device_table", 3)
    assert (one.kind, one.block, one.salt) == ("device_table", 3, digest("a"))
    assert shadow.seen_elsewhere(1, "device_table", 1) == [], "it is told of"
    assert (2, kinds.SPOILED) in kinds_of(begins(shadow, 2, "a", [3, 1, 4], 8))
    (nobody,) = shadow.seen_elsewhere(9, "device_table", 3)
    assert (nobody.salt, nobody.salt_id) == (None, None)
