"""Memory in huge pages: zero, and one holder's alone for as long as any array over it lives."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from engines.embedded.huge import KEPT, PAGE, WORTH, Lender, zeros

SIZE = PAGE - 8


def address(memory: memoryview) -> int:
    return int(np.frombuffer(memory, np.uint8).ctypes.data)


def test_little_and_much_are_zero_and_as_large_as_asked_for() -> None:
    lender = Lender()
    for size in (0, 8, WORTH - 1, WORTH, PAGE, PAGE + 1, 3 * PAGE):
        memory = lender.zeros(size)
        assert len(memory) == size
        assert not any(memory)
        memory[:] = b"x" * size


def test_much_begins_where_a_huge_page_may() -> None:
    assert address(Lender().zeros(WORTH)) % PAGE == 0
    assert zeros(WORTH // 8).ctypes.data % PAGE == 0


def test_numbers_are_zero_and_can_be_written() -> None:
    for count in (1, WORTH // 8, PAGE // 8 + 1):
        numbers = zeros(count)
        assert len(numbers) == count
        assert not numbers.any()
        numbers[-1] = 2**64 - 1
        assert numbers[-1] == 2**64 - 1


def test_what_was_given_back_is_lent_again_and_zero_again() -> None:
    lender = Lender()
    memory = lender.zeros(SIZE)
    first = address(memory)
    memory[:] = b"x" * SIZE
    del memory
    again = lender.zeros(WORTH)
    assert address(again) == first
    assert not any(again)


HOLDERS: dict[str, Callable[[memoryview], object]] = {
    "itself": lambda memory: memory,
    "a slice": lambda memory: memory[8:16],
    "other numbers": lambda memory: memory.cast("q"),
    "an array": lambda memory: np.frombuffer(memory, np.int64),
    "a part of an array of a slice": lambda memory: np.frombuffer(
        memory[:WORTH].cast("Q"), np.uint64
    ).reshape(2, -1)[1:, ::2],
    "a view of a view": lambda memory: np.frombuffer(memory, np.uint8)[5:].view()[7:9].T,
    "memory of an array": lambda memory: np.frombuffer(memory, np.uint8)[:3].data,
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_whatever_lies_over_it_keeps_it_from_others(holder: str) -> None:
    lender = Lender()
    memory = lender.zeros(SIZE)
    first, held = address(memory), HOLDERS[holder](memory)
    del memory
    assert address(lender.zeros(SIZE)) != first
    del held
    assert first in {address(one) for one in [lender.zeros(SIZE) for _ in range(2)]}


def test_steps_that_grow_leave_the_smaller_blocks_behind() -> None:
    lender = Lender()
    small = [lender.zeros(SIZE) for _ in range(2)]
    small.clear()
    large = lender.zeros(PAGE + 1)
    assert len(large) == PAGE + 1
    del large
    assert [block.size for block in lender._free] == [2 * PAGE]


def test_no_more_is_kept_than_steps_take_at_once() -> None:
    lender = Lender()
    many = [lender.zeros(SIZE) for _ in range(KEPT + 3)]
    assert len({address(one) for one in many}) == KEPT + 3
    many.clear()
    assert len(lender._free) == KEPT


def test_threads_never_share_a_block() -> None:
    lender, wrong = Lender(), []

    def run(mark: int) -> None:
        for _ in range(200):
            numbers = np.frombuffer(lender.zeros(WORTH), np.uint64)
            if numbers.any():
                wrong.append("not zero")
            numbers[:] = mark
            if (numbers != mark).any():
                wrong.append("written by another")

    threads = [threading.Thread(target=run, args=(mark,)) for mark in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
