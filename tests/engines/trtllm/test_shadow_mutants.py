"""The gate: each mutant of the ledger is killed by the test that is there to kill it."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest

from engines.trtllm.shadow import Shadow
from tests.engines.trtllm import shadow_mutants as m, test_shadow as t

Killer = Callable[..., None]

GATE: list[tuple[m.Mutant, Killer]] = [
    # Blocks and their tags.
    (m.keeps_the_tag_of_a_block_that_is_given_anew, t.test_a_block_of_two_rows_is_told_to_both),
    (m.gives_all_blocks_of_a_row_one_tag, t.test_a_block_twice_in_a_row_is_told),
    (m.takes_blocks_beyond_the_pool, t.test_a_block_that_the_pool_does_not_have_is_told),
    (m.spoils_nothing, t.test_what_two_had_is_no_hit_for_anybody),
    (
        m.loses_what_it_knows_when_it_grows,
        t.test_a_pool_without_a_known_size_grows_as_ids_are_seen,
    ),
    # What was found in the cache.
    (m.compares_no_salts, t.test_a_hit_of_another_salt_is_told_before_it_is_read),
    (m.salts_are_all_one, t.test_a_hit_of_another_salt_is_told_before_it_is_read),
    (
        m.believes_a_block_that_was_found_amiss,
        t.test_what_another_salt_found_is_no_hit_for_its_own_any_more,
    ),
    (m.compares_no_contents, t.test_a_hit_on_other_tokens_is_told),
    (m.keys_leave_out_what_came_before, t.test_a_hit_on_the_same_tokens_after_others_is_told),
    (m.keys_leave_out_the_adapter, t.test_a_hit_of_another_adapter_is_told),
    (m.takes_hits_that_are_not_computed, t.test_a_hit_on_what_is_not_computed_is_told),
    (
        m.forgets_how_much_was_computed,
        t.test_a_hit_on_what_was_never_computed_to_its_end_is_told,
    ),
    (
        m.takes_a_pass_that_broke_off_for_done,
        t.test_a_hit_on_what_a_pass_that_broke_off_computed_is_told,
    ),
    (m.asks_for_no_proof, t.test_a_hit_within_a_block_on_what_its_salt_never_said_is_told),
    (
        m.takes_any_salts_word_for_proof,
        t.test_a_hit_within_a_block_on_what_its_salt_never_said_is_told,
    ),
    # Rows in steps.
    (m.checks_nothing, t.test_every_block_of_every_row_is_checked_in_every_step),
    (
        m.checks_the_last_block_of_each_row,
        t.test_a_block_of_two_rows_that_is_not_their_last_is_told,
    ),
    (m.checks_one_row_of_a_step, t.test_every_block_of_every_row_is_checked_in_every_step),
    (m.tells_one_of_two, t.test_a_block_of_two_rows_is_told_to_both),
    (
        m.gives_nothing_that_is_gained,
        t.test_a_block_that_is_gained_and_was_anothers_is_told_to_both,
    ),
    (m.trusts_whoever_it_never_met, t.test_a_request_that_was_never_given_blocks_is_told),
    (m.needs_no_salt, t.test_a_request_without_a_salt_is_told),
    (m.takes_any_position, t.test_tokens_that_nobody_computed_are_told),
    (m.counts_no_blocks, t.test_more_tokens_than_blocks_are_told),
    (m.lets_shared_blocks_be_written, t.test_a_write_to_what_is_shared_is_told_to_all_who_share),
    (m.lets_no_page_be_written, t.test_a_write_to_no_page_is_told),
    (m.compares_no_lists, t.test_a_list_that_changed_shows_at_the_end),
    (m.takes_a_page_that_is_gone_for_another, t.test_a_page_that_is_gone_is_no_block),
    (
        m.goes_on_after_a_violation,
        t.test_what_a_row_writes_after_it_read_anothers_is_no_hit,
    ),
    (m.tells_again_and_again, t.test_each_kind_is_told_once_a_row),
    # Who there is.
    (m.lets_nobody_leave, t.test_what_is_remembered_is_bounded),
    (m.lets_everybody_leave, t.test_who_is_in_no_step_for_long_comes_back),
    (m.forgets_who_has_left, t.test_who_runs_on_after_its_end_has_a_name),
]


@pytest.mark.parametrize(
    ("mutant", "killer"), GATE, ids=lambda function: function.__name__.removeprefix("test_")
)
def test_a_mutant_is_killed(
    mutant: m.Mutant, killer: Killer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(killer)
    mutant(monkeypatch)
    with pytest.raises((AssertionError, RuntimeError)):
        _run(killer)


def test_every_mutant_is_in_the_gate() -> None:
    ours = {
        function
        for name, function in vars(m).items()
        if getattr(function, "__module__", "") == m.__name__ and not name.startswith("_")
    }
    assert ours == {mutant for mutant, _ in GATE}


def _run(killer: Killer) -> None:
    """With a ledger of its own, as the tests have it."""
    takes = inspect.signature(killer).parameters
    killer(*[Shadow(t.SIZE, requires_salt=True, num_blocks=16)] * len(takes))
