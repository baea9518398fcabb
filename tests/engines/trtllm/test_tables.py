"""What each rank knows of the rows' blocks is what rank 0 told of them, step by step."""

from __future__ import annotations

from hypothesis import given, strategies as st

from engines.trtllm.tables import MAX_REQUESTS, Tables, Told

REQUESTS = st.integers(0, 5)
BLOCKS = st.lists(st.integers(0, 2**31 - 1), max_size=40).map(tuple)
STEPS = st.lists(
    st.lists(st.tuples(REQUESTS, st.sampled_from([True, False, None]), BLOCKS), max_size=4).map(
        tuple
    ),
    max_size=12,
)


def known(steps: list[Told]) -> dict[int, list[int]]:
    """The same in plain words."""
    lists: dict[int, list[int]] = {}
    for step in steps:
        for request, is_new, blocks in step:
            if is_new is None:
                lists.pop(request, None)
            elif is_new:
                lists[request] = list(blocks)
            elif request in lists:
                lists[request] += blocks
    return lists


@given(STEPS)
def test_lists_are_as_they_were_told(steps: list[Told]) -> None:
    tables = Tables()
    for step in steps:
        tables.told(step)
    lists = known(steps)
    blocks, counts = tables.of(range(6))
    for request in range(6):
        expected = lists.get(request, [])
        assert counts[request] == len(expected)
        assert blocks[request, : len(expected)].tolist() == expected


def test_nothing_is_known_of_nobody() -> None:
    blocks, counts = Tables().of([])
    assert blocks.shape == (0, 0)
    assert counts.shape == (0,)


def test_the_oldest_are_forgotten() -> None:
    """Those that were cancelled: nobody says so."""
    tables = Tables()
    for request in range(MAX_REQUESTS + 1):
        tables.told(((request, True, (request,)),))
    blocks, counts = tables.of([0, 1, MAX_REQUESTS])
    assert counts.tolist() == [0, 1, 1]
    assert blocks[1:].tolist() == [[1], [MAX_REQUESTS]]
