"""The check of a whole step at once says what a loop over its pages and slots says.

In torch and in numpy: whatever is asked of the one here is asked of the other, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from numpy.typing import NDArray
from torch import Tensor

from engines.embedded import tags as embedded_tags
from engines.embedded.pages import NULL_PAGE
from engines.kernels import tag_check, tag_check_host
from tests.engines.kernels.reference import (
    ACTIVE,
    FAR,
    HIGH,
    PAGE_SIZE,
    SEALED,
    Step,
    harmed_steps,
    null_page_as_own,
    one_page,
    one_row,
    pack,
    sound_steps,
)

FAULTY_PAGES: Callable[..., Tensor] = tag_check.faulty_pages
FAULTY_SLOTS: Callable[..., Tensor] = tag_check.faulty_slots
HOST_PAGES: Callable[..., NDArray[np.bool_]] = tag_check_host.faulty_pages
HOST_SLOTS: Callable[..., NDArray[np.bool_]] = tag_check_host.faulty_slots


def pages(step: Step) -> list[list[bool]]:
    faulty = FAULTY_PAGES(*step.page_arrays())
    assert faulty.dtype == torch.bool
    assert faulty.shape == (len(step.num_pages), step.max_pages)
    flags: list[list[bool]] = faulty.tolist()
    twin = HOST_PAGES(*(array.numpy() for array in step.page_arrays()))
    assert twin.dtype == np.bool_
    assert twin.tolist() == flags
    return flags


def slots(step: Step) -> list[bool]:
    faulty = FAULTY_SLOTS(*step.slot_arrays(), PAGE_SIZE, ACTIVE)
    assert faulty.dtype == torch.bool
    flags: list[bool] = faulty.tolist()
    on_host = [array.numpy() for array in step.slot_arrays()]
    twin = HOST_SLOTS(*on_host, PAGE_SIZE, ACTIVE)
    assert twin.dtype == np.bool_
    assert twin.tolist() == flags
    return flags


@given(sound_steps())
@example(one_row())
@example(one_page())
def test_a_sound_step_has_no_fault(step: Step) -> None:
    assert not any(map(any, pages(step)))
    assert not any(slots(step))


@given(sound_steps() | harmed_steps())
def test_pages_are_as_a_loop_finds_them(step: Step) -> None:
    assert pages(step) == step.faulty_pages()


@given(sound_steps() | harmed_steps())
def test_slots_are_as_a_loop_finds_them(step: Step) -> None:
    assert slots(step) == step.faulty_slots()


@given(sound_steps() | harmed_steps())
def test_nothing_that_was_handed_over_is_changed(step: Step) -> None:
    for check, twin, arrays, numbers in (
        (FAULTY_PAGES, HOST_PAGES, step.page_arrays(), ()),
        (FAULTY_SLOTS, HOST_SLOTS, step.slot_arrays(), (PAGE_SIZE, ACTIVE)),
    ):
        before = [array.clone() for array in arrays]
        check(*arrays, *numbers)
        twin(*(array.numpy() for array in arrays), *numbers)
        assert all(torch.equal(a, b) for a, b in zip(arrays, before, strict=True))


@pytest.mark.parametrize("page", [page for page in FAR if page != 1] + [2, 3])
def test_a_page_outside_of_the_pool(page: int) -> None:
    """Though each page there is be the row's: what lies outside isn't taken for the nearest."""
    assert pages(replace(one_page(), block_tables=[[page]])) == [[True]]


@pytest.mark.parametrize("slot", [*FAR, PAGE_SIZE - 1, 2 * PAGE_SIZE])
def test_a_slot_outside_of_the_pool(slot: int) -> None:
    assert slots(replace(one_page(), slots=[slot])) == [True]


@pytest.mark.parametrize("number", [number for number in FAR if not 0 <= number < PAGE_SIZE])
def test_a_row_or_a_position_that_the_step_does_not_have(number: int) -> None:
    assert slots(replace(one_page(), positions=[number])) == [True]
    assert slots(replace(one_page(), token_rows=[number])) == [True]


def test_a_page_of_the_pool_that_is_not_the_rows() -> None:
    assert pages(replace(one_row(), block_tables=[[1, 3, 0]])) == [[False, True, False]]
    assert pages(replace(one_row(), block_tables=[[2, 1, 0]])) == [[True, True, False]]
    assert slots(replace(one_row(), slots=[PAGE_SIZE])) == [True]
    assert slots(replace(one_row(), slots=[3 * PAGE_SIZE])) == [True]


def test_the_null_page_is_nobodys_whatever_it_says() -> None:
    assert pages(null_page_as_own()) == [[True]]
    assert slots(null_page_as_own()) == [True]


def test_columns_past_the_row_are_not_looked_at() -> None:
    step = replace(
        one_row(), block_tables=[[1, 2, 2**62]], expected_tags=[[*one_row().tags[1:3], 5]]
    )
    assert pages(step) == [[False, False, False]]


def test_a_right_tag_of_another_domain_is_a_fault_of_page_and_slot() -> None:
    for domain in (HIGH - 1, HIGH & 0x7FFF, HIGH - 0x10000, HIGH + 0x10000, 0):
        step = replace(one_row(), row_domains=[domain])
        assert pages(step) == [[True, True, False]]
        assert slots(step) == [True]


@pytest.mark.parametrize(
    "harm",
    [
        {"states": [0, SEALED, SEALED, ACTIVE]},
        {"refs": [0, 2, 2, 1]},
        {"refs": [0, 2, 0, 1]},
        {"owners": [-1, -1, 60, 60]},
        {"row_owners": [60]},
        {"positions": [0]},
        {"positions": [-1]},
        {"positions": [3 * PAGE_SIZE]},
        {"token_rows": [1]},
        {"token_rows": [-1]},
        {"tags": [0, pack(HIGH, 7), pack(HIGH, 9), pack(3, 9)]},
    ],
    ids=str,
)
def test_a_page_that_is_not_the_rows_to_write(harm: dict[str, Any]) -> None:
    assert slots(replace(one_row(), **harm)) == [True]


def test_steps_without_rows_columns_tokens_or_pages() -> None:
    nothing = Step([0, 5], [0, 0], [0, 0], [0, 0], [], [], [], [], [])
    assert pages(nothing) == []
    assert slots(nothing) == []
    no_columns = replace(
        nothing,
        block_tables=[[]],
        expected_tags=[[]],
        row_domains=[1],
        row_owners=[1],
        num_pages=[0],
    )
    assert pages(no_columns) == [[]]
    assert slots(replace(no_columns, slots=[4], token_rows=[0], positions=[0])) == [True]
    for tags in ([], [0]):
        step = replace(one_row(), tags=tags)
        assert pages(step) == [[True, True, False]]
        assert slots(step) == [True]


def test_tables_that_are_views_are_read_as_they_are() -> None:
    step = one_row()
    tags, tables, expected, domains, num_pages = step.page_arrays()
    wide = torch.stack([expected, expected + 1], dim=2)
    column_first = tables.T.contiguous().T
    views = (tags, column_first, wide[:, :, 0], domains, num_pages)
    assert FAULTY_PAGES(*views).tolist() == step.faulty_pages()
    assert HOST_PAGES(*(view.numpy() for view in views)).tolist() == step.faulty_pages()


def test_a_tag_is_what_the_pool_says_it_is() -> None:
    assert tag_check_host.GENERATION_BITS == embedded_tags.GENERATION_BITS
    assert tag_check_host.DOMAIN_MASK == embedded_tags.QUARANTINE_SLOT
    assert tag_check_host.FIRST_PAGE == NULL_PAGE + 1
    assert pack(HIGH, 7) == embedded_tags.pack(HIGH, 7)
