"""The arrays of a step."""

from __future__ import annotations

from engines.api import Request, Sampling
from engines.embedded.batch import build
from engines.embedded.seq import Chunk, Page, Seq


def make_seq(num_tokens: int, num_computed: int, pages: list[Page], slot: int) -> Seq:
    seq = Seq.of(Request("r", "a", tuple(range(100, 100 + num_tokens)), Sampling(4)))
    seq.num_computed, seq.domain_slot = num_computed, slot
    for page in pages:
        seq.hold(page)
    return seq


def test_a_chunk_and_a_decode_become_ragged_arrays() -> None:
    """The decode row moves to the front; slots, tags and lengths follow each token and row."""
    prefill = make_seq(7, 2, [Page(3, 33), Page(1, 11)], slot=5)
    decode = make_seq(9, 8, [Page(2, 22), Page(4, 44), Page(6, 66)], slot=6)
    batch = build([Chunk(prefill, 4), Chunk(decode, 1)], page_size=4)
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
    assert build([Chunk(seq, 3)], page_size=4).block_tables.tolist() == [[1]]


def test_no_chunks_make_an_empty_batch() -> None:
    """So that a step whose rows were all dropped needs no special case."""
    batch = build([], page_size=4)
    assert batch.chunks == []
    assert batch.block_tables.shape == (0, 0)
