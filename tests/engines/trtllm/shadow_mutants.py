"""The ledger with one thing wrong: each mutant replaces one function of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from engines.trtllm import violations as kinds
from engines.trtllm.blocks import Blocks, Ints
from engines.trtllm.prefixes import Prefixes
from engines.trtllm.roll import Roll
from engines.trtllm.rows import Owner, Row
from engines.trtllm.shadow import Shadow
from engines.trtllm.telling import Teller
from engines.trtllm.texts import FullBlock, Text

Patch = pytest.MonkeyPatch
Mutant = Callable[[Patch], None]


def _never_tells(patch: Patch, *silent: str) -> None:
    tell = Teller.tell

    def told(teller: Teller, row: Row, kind: str, block: int = -1) -> None:
        if kind not in silent:
            tell(teller, row, kind, block)

    patch.setattr(Teller, "tell", told)


# Blocks and their tags


def keeps_the_tag_of_a_block_that_is_given_anew(patch: Patch) -> None:
    """Whoever had it may go on reading it."""
    give = Blocks.give

    def given(blocks: Blocks, which: Ints, *rest: Any) -> Ints:
        had = blocks.tags[which].copy()
        tags = np.where(had > 0, had, give(blocks, which, *rest))
        blocks.tags[which] = tags
        return tags

    patch.setattr(Blocks, "give", given)


def gives_all_blocks_of_a_row_one_tag(patch: Patch) -> None:
    """A block twice in a row is right."""
    give = Blocks.give

    def given(blocks: Blocks, which: Ints, *rest: Any) -> Ints:
        tags = give(blocks, which, *rest)
        tags[:] = blocks.tags[which] = tags[:1]
        return tags

    patch.setattr(Blocks, "give", given)


def takes_blocks_beyond_the_pool(patch: Patch) -> None:
    """Any number is a block."""

    def has(blocks: Blocks, which: Ints) -> Any:
        blocks.limit = 1 << 20
        return real(blocks, which)

    real = Blocks.has
    patch.setattr(Blocks, "has", has)


def spoils_nothing(patch: Patch) -> None:
    """What two rows had can be had by a third."""
    patch.setattr(Blocks, "spoil", lambda blocks, which: None)


def loses_what_it_knows_when_it_grows(patch: Patch) -> None:
    """All that was given before is unknown."""

    def grow(blocks: Blocks, highest: int) -> None:
        size = blocks.tokens.shape[1]
        blocks.__init__(size)  # type: ignore[misc]
        real(blocks, highest)

    real = Blocks._grow
    patch.setattr(Blocks, "_grow", grow)


# What was found in the cache


def compares_no_salts(patch: Patch) -> None:
    """A hit is right, whosever it is."""
    _never_tells(patch, kinds.FOREIGN)


def salts_are_all_one(patch: Patch) -> None:
    """The domain isn't made of the salt."""
    of = Owner.of
    patch.setattr(Owner, "of", staticmethod(lambda salt: of(salt)._replace(domain=1)))


def believes_a_block_that_was_found_amiss(patch: Patch) -> None:
    """Another salt's hit on it was wrong, and what it holds is right."""
    patch.setattr(Blocks, "disown", lambda blocks, which: None)


def compares_no_contents(patch: Patch) -> None:
    """A hit is right, whatever it says."""
    patch.setattr(Prefixes, "_check_content", lambda prefixes, row, hits, own, full: None)


def keys_leave_out_what_came_before(patch: Patch) -> None:
    """Equal tokens are equal blocks."""
    write = Text.write

    def written(text: Text, tokens: Sequence[int]) -> list[FullBlock]:
        full = write(text, tokens)
        return [block._replace(key=hash(tuple(block.tokens))) for block in full]

    patch.setattr(Text, "write", written)


def keys_leave_out_the_adapter(patch: Patch) -> None:
    """Keys and values of another adapter are as good."""
    init = Text.__init__
    patch.setattr(Text, "__init__", lambda text, domain, adapter, size: init(text, domain, 0, size))


def takes_hits_that_are_not_computed(patch: Patch) -> None:
    """What is in the cache is there."""
    patch.setattr(Prefixes, "check_computed", lambda prefixes, row: None)


def forgets_how_much_was_computed(patch: Patch) -> None:
    """Whoever leaves has computed all its blocks."""

    def computed(roll: Roll, row: Row, own: Ints) -> Ints:
        return np.full(len(own), roll._tokens_per_block)

    patch.setattr(Roll, "_computed", computed)


def takes_a_pass_that_broke_off_for_done(patch: Patch) -> None:
    """What was to be computed is."""
    patch.setattr(Shadow, "failed", lambda shadow: None)


def asks_for_no_proof(patch: Patch) -> None:
    """A hit within a block is its salt's own."""
    patch.setattr(Prefixes, "check_part", lambda prefixes, row, block, parent, tokens: None)


def takes_any_salts_word_for_proof(patch: Patch) -> None:
    """Some salt has said so."""

    def held(prefixes: Prefixes, row: Row, parent: int, tokens: Sequence[int]) -> Ints:
        blocks = prefixes._blocks
        for other in prefixes._roll.rows():
            other.write_down_tail(blocks)
        found = np.flatnonzero(blocks.lengths >= len(tokens))
        alike: Ints = found[(blocks.tokens[found, : len(tokens)] == tokens).all(axis=1)]
        return alike

    patch.setattr(Prefixes, "_holders", held)


# Rows in steps


def checks_nothing(patch: Patch) -> None:
    """And so counts nothing."""
    patch.setattr(Shadow, "_check_tags", lambda shadow, rows: None)


def checks_the_last_block_of_each_row(patch: Patch) -> None:
    """The one that is written to, as if no other could change hands."""

    def check(shadow: Shadow, rows: Sequence[Row]) -> None:
        tags = shadow._blocks.tags
        shadow.counters.checked += sum(row.num_blocks for row in rows)
        if any(tags[row.cells[0, -1]] != row.cells[1, -1] for row in rows):
            shadow._tell_stale(rows)

    patch.setattr(Shadow, "_check_tags", check)


def checks_one_row_of_a_step(patch: Patch) -> None:
    """The first."""
    check = Shadow._check_tags
    patch.setattr(Shadow, "_check_tags", lambda shadow, rows: check(shadow, rows[:1]))


def tells_one_of_two(patch: Patch) -> None:
    """Who had the block first, and not who has it too."""
    _never_tells(patch, kinds.DOUBLE)


def gives_nothing_that_is_gained(patch: Patch) -> None:
    """A row has the blocks that it began with."""
    patch.setattr(Shadow, "_gain", lambda shadow, row, blocks, end: None)


def trusts_whoever_it_never_met(patch: Patch) -> None:
    """A request without blocks is one like others."""
    _never_tells(patch, kinds.UNKNOWN)


def needs_no_salt(patch: Patch) -> None:
    """A request without one shares with all such."""
    _never_tells(patch, kinds.UNSALTED)


def takes_any_position(patch: Patch) -> None:
    """What it says is computed is computed."""
    _never_tells(patch, kinds.SKIPPED)


def counts_no_blocks(patch: Patch) -> None:
    """A row may have fewer than its tokens need, or hidden ones."""
    _never_tells(patch, kinds.SHORT, kinds.HIDDEN)


def lets_shared_blocks_be_written(patch: Patch) -> None:
    """A hit is a block like its own."""
    place = Shadow._place

    def placed(shadow: Shadow, row: Row, position: int, end: int) -> None:
        row.num_shared = 0
        place(shadow, row, position, end)

    patch.setattr(Shadow, "_place", placed)


def lets_no_page_be_written(patch: Patch) -> None:
    """-1 is a page like others."""
    _never_tells(patch, kinds.UNBACKED)


def compares_no_lists(patch: Patch) -> None:
    """A list is what it was."""
    patch.setattr(Shadow, "_compare", lambda shadow, row, blocks, first=0: None)


def takes_a_page_that_is_gone_for_another(patch: Patch) -> None:
    """A window is a fault."""
    patch.setattr(Row, "drop", lambda row, indexes: None)


def goes_on_after_a_violation(patch: Patch) -> None:
    """What a row writes that has read another's is its own."""
    patch.setattr(Row, "condemn", lambda row, blocks: None)


def tells_again_and_again(patch: Patch) -> None:
    """In each step."""
    tell = Teller.tell

    def told(teller: Teller, row: Row, kind: str, block: int = -1) -> None:
        row.told.discard(kind)
        tell(teller, row, kind, block)

    patch.setattr(Teller, "tell", told)


# Who there is


def lets_nobody_leave(patch: Patch) -> None:
    """What is remembered grows."""
    patch.setattr(Roll, "let_leave", lambda roll, step: None)


def lets_everybody_leave(patch: Patch) -> None:
    """Whoever isn't in a step has left for good."""

    def leave(roll: Roll, step: int) -> None:
        for row in [row for row in roll.rows() if row.last_step < step]:
            roll.depart(row)
            del roll._departed[row.request]

    patch.setattr(Roll, "let_leave", leave)


def forgets_who_has_left(patch: Patch) -> None:
    """At once."""
    depart = Roll.depart

    def departs(roll: Roll, row: Row | None) -> None:
        depart(roll, row)
        roll._departed.clear()

    patch.setattr(Roll, "depart", departs)
