"""The arrays of a step."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from engines.api import Request, Sampling
from engines.embedded import batch as batch_module
from engines.embedded.batch import UNKNOWN, build
from engines.embedded.huge import WORTH, Lender
from engines.embedded.seq import Chunk, Page, Seq
from engines.kernels import native


def make_seq(num_tokens: int, num_computed: int, pages: list[Page], slot: int) -> Seq:
    seq = Seq.of(Request("r", "a", tuple(range(100, 100 + num_tokens)), Sampling(4)))
    seq.begin(num_computed)
    seq.domain_slot = slot
    for page in pages:
        seq.hold(page)
    return seq


def test_a_chunk_and_a_decode_become_ragged_arrays() -> None:
    """The decode row moves to the front; slots, tags and lengths follow each token and row."""
    prefill = make_seq(7, 2, [Page(3, 33), Page(1, 11)], slot=5)
    decode = make_seq(9, 8, [Page(2, 22), Page(4, 44), Page(6, 66)], slot=6)
    batch = build([prefill.next_chunk(4), decode.next_chunk(1)], page_size=4)
    assert [chunk.seq for chunk in batch.chunks] == [decode, prefill]
    assert batch.num_decodes == 1
    assert batch.input_ids.tolist() == [108, 102, 103, 104, 105]
    assert batch.positions.tolist() == [8, 2, 3, 4, 5]
    assert batch.token_rows.tolist() == [0, 1, 1, 1, 1]
    assert batch.slot_mapping.tolist() == [24, 14, 15, 4, 5]
    assert batch.block_tables.tolist() == [[2, 4, 6], [3, 1, 0]]
    assert batch.expected_tags.tolist() == [[22, 44, 66], [33, 11, 0]]
    assert batch.row_domains.tolist() == [6, 5]
    assert batch.context_lens.tolist() == [9, 6]
    assert batch.last_tokens.tolist() == [0, 4]
    assert [chunk.samples for chunk in batch.chunks] == [True, False]


def test_pages_beyond_the_context_are_left_out() -> None:
    """A table may be longer than what this step reads."""
    seq = make_seq(3, 0, [Page(1, 11), Page(2, 22)], slot=1)
    assert build([seq.next_chunk(3)], page_size=4).block_tables.tolist() == [[1]]


def test_no_chunks_make_an_empty_batch() -> None:
    """So that a step whose rows were all dropped needs no special case."""
    batch = build([], page_size=4)
    assert batch.chunks == []
    assert batch.block_tables.shape == (0, 0)


def test_a_token_that_is_still_being_chosen_is_filled_in_later() -> None:
    """A decode may be laid out before the step ahead of it has ended."""
    seq = make_seq(3, 0, [Page(1, 11)], slot=1)
    seq.next_chunk(3)
    batch = build([seq.next_chunk(1)], page_size=4)
    assert batch.input_ids.tolist() == [UNKNOWN]
    assert batch.context_lens.tolist() == [4]
    assert batch.with_tokens({seq: 42}).input_ids.tolist() == [42]


def test_a_row_whose_token_never_came_is_left_out() -> None:
    """Its step was stopped; the other rows keep theirs."""
    stopped = make_seq(3, 0, [Page(1, 11)], slot=1)
    stopped.next_chunk(3)
    other = make_seq(6, 5, [Page(2, 22), Page(3, 33)], slot=2)
    batch = build([stopped.next_chunk(1), other.next_chunk(1)], page_size=4).with_tokens({})
    assert [chunk.seq for chunk in batch.chunks] == [other]
    assert batch.input_ids.tolist() == [105]
    assert batch.block_tables.tolist() == [[2, 3]]


def test_a_batch_without_some_rows_is_the_batch_of_the_others() -> None:
    """Array by array, wherever the rows stood."""

    def chunks() -> list[Chunk]:
        long = make_seq(7, 2, [Page(3, 33), Page(1, 11)], slot=5)
        short = make_seq(9, 8, [Page(2, 22), Page(4, 44), Page(6, 66)], slot=6)
        copying = make_seq(8, 7, [Page(5, 55), Page(7, 77)], slot=7)
        copying.copied = Page(8, 88)
        return [long.next_chunk(4), short.next_chunk(1), copying.next_chunk(1)]

    for kept in ([0], [1], [2], [0, 1], [0, 2], [1, 2], []):
        all_of_them = chunks()
        whole = build(all_of_them, page_size=4)
        gone = [
            row
            for row, chunk in enumerate(whole.chunks)
            if chunk not in [all_of_them[i] for i in kept]
        ]
        less = whole.without(gone)
        alone = build([all_of_them[i] for i in kept], page_size=4)
        assert less.chunks == alone.chunks
        for name in (field.name for field in fields(less) if field.type in ("Ints", "Tags")):
            assert getattr(less, name).tolist() == getattr(alone, name).tolist(), name


def test_a_copied_page_goes_over_the_page_that_is_written() -> None:
    """The first chunk of a seq whose last page was cached whole; only the first."""
    seq = make_seq(8, 7, [Page(5, 55), Page(7, 77)], slot=7)
    seq.copied = Page(8, 88)
    batch = build([seq.next_chunk(1)], page_size=4)
    assert batch.copy_rows.tolist() == [0]
    assert batch.copy_sources.tolist() == [8]
    assert batch.copy_targets(4).tolist() == [7]
    assert batch.copy_tags.tolist() == [88]
    assert set(batch.touched().tolist()) == {5, 7, 8}
    seq.hold(Page(9, 99))
    assert len(build([seq.next_chunk(1)], page_size=4).copy_rows) == 0


def test_a_large_step_finds_nothing_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tables lie where another's have lain; past the end of a short row is the null page."""
    monkeypatch.setattr(batch_module, "MEMORY", Lender())
    length = WORTH // 16
    long = make_seq(length, length - 1, [Page(n + 1, n + 9) for n in range(length)], slot=1)
    short = make_seq(2, 1, [Page(5, 55), Page(6, 66)], slot=1)
    chunk = long.next_chunk(1)
    before = build([chunk, replace(chunk)], page_size=1)
    assert before.block_tables[1, -1] == length
    where = before.block_tables.ctypes.data
    del before
    batch = build([chunk, short.next_chunk(1)], page_size=1)
    assert batch.block_tables.ctypes.data == where
    assert batch.block_tables[0].tolist() == list(range(1, length + 1))
    assert batch.expected_tags[0].tolist() == list(range(9, length + 9))
    assert batch.block_tables[1].tolist() == [5, 6] + [0] * (length - 2)
    assert batch.expected_tags[1].tolist() == [55, 66] + [0] * (length - 2)


def test_a_step_that_is_held_keeps_its_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever holds a step, or its view alone, has it as it was laid out."""
    monkeypatch.setattr(batch_module, "MEMORY", Lender())
    length = WORTH // 16
    seq = make_seq(length, length - 1, [Page(n + 1, n + 9) for n in range(length)], slot=1)
    chunk = seq.next_chunk(1)
    held = [build([chunk], page_size=1) for _ in range(3)]
    tables = {batch.block_tables.ctypes.data for batch in held}
    assert len(tables) == len(held)
    views = [batch.view for batch in held] if native.IS_BUILT else held
    held.clear()
    assert build([chunk], page_size=1).block_tables.ctypes.data not in tables
    views.clear()
    assert build([chunk], page_size=1).block_tables.ctypes.data in tables
