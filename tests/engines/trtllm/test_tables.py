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


ROWS = st.lists(REQUESTS, unique=True, max_size=6)


@given(STEPS, st.lists(ROWS, min_size=1, max_size=4))
def test_lists_are_as_they_were_told(steps: list[Told], orders: list[list[int]]) -> None:
    """Whichever requests are asked for behind each step, and however often the same ones."""
    tables = Tables()
    for number, step in enumerate(steps):
        tables.told(step)
        lists = known(steps[: number + 1])
        requests = orders[number // 2 % len(orders)]
        blocks, counts = tables.of(requests)
        assert blocks.shape == (len(requests), max(map(len, lists_of(lists, requests)), default=0))
        for row, expected in enumerate(lists_of(lists, requests)):
            assert counts[row] == len(expected)
            assert blocks[row, : len(expected)].tolist() == expected


def lists_of(lists: dict[int, list[int]], requests: list[int]) -> list[list[int]]:
    return [lists.get(request, []) for request in requests]


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
