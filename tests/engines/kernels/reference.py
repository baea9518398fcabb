"""The tag check as a plain loop over Python's own ints, and the steps that the kernels are put to.

Told nothing of torch but where it has to hand tensors over: what is right is said here in words.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

PAGE_SIZE = 4
FREE, ACTIVE, SEALED = 0, 1, 2
FAR = [-(2**63), -(2**62), -PAGE_SIZE, -1, 0, 1, 2**31, 2**32 + 1, 2**62, 2**63 - 1]


def pack(domain: int, generation: int) -> int:
    """A tag as the pool has it, without a sign."""
    return domain << 48 | generation


@dataclass(frozen=True)
class Step:
    """Pool, rows and tokens of one step. Tags are unsigned here."""

    tags: list[int]
    states: list[int]
    refs: list[int]
    owners: list[int]
    block_tables: list[list[int]]
    expected_tags: list[list[int]]
    row_domains: list[int]
    row_owners: list[int]
    num_pages: list[int]
    slots: list[int] = field(default_factory=list)
    token_rows: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)

    @property
    def max_pages(self) -> int:
        """Columns of the tables."""
        return max(map(len, self.block_tables), default=0)

    def faulty_pages(self) -> list[list[bool]]:
        """Row by row, page by page."""
        return [
            [column < count and self._is_wrong(row, column) for column in range(self.max_pages)]
            for row, count in enumerate(self.num_pages)
        ]

    def faulty_slots(self) -> list[bool]:
        """Token by token."""
        return [
            self._is_no_row_of_ours(row, position)
            or self._is_not_to_be_written(slot // PAGE_SIZE, row, position // PAGE_SIZE)
            for slot, row, position in zip(self.slots, self.token_rows, self.positions, strict=True)
        ]

    def _is_no_row_of_ours(self, row: int, position: int) -> bool:
        return not (0 <= row < len(self.num_pages) and 0 <= position // PAGE_SIZE < self.max_pages)

    def _is_not_to_be_written(self, page: int, row: int, column: int) -> bool:
        return self._is_another(page, row, column) or (
            self.states[page] != ACTIVE
            or self.refs[page] != 1
            or self.owners[page] != self.row_owners[row]
        )

    def _is_wrong(self, row: int, column: int) -> bool:
        return self._is_another(self.block_tables[row][column], row, column)

    def _is_another(self, page: int, row: int, column: int) -> bool:
        if not 0 < page < len(self.tags):
            return True
        tag = self.tags[page]
        return tag != self.expected_tags[row][column] or tag >> 48 != self.row_domains[row]

    def page_arrays(self) -> list[Tensor]:
        """What `faulty_pages` is called with."""
        return [
            ints(self.tags),
            self._table(self.block_tables),
            self._table(self.expected_tags),
            ints(self.row_domains),
            ints(self.num_pages),
        ]

    def slot_arrays(self) -> list[Tensor]:
        """What `faulty_slots` is called with, but for its two numbers."""
        return [
            ints(self.tags),
            torch.tensor(self.states, dtype=torch.uint8),
            torch.tensor(self.refs, dtype=torch.int32),
            ints(self.owners),
            ints(self.slots),
            ints(self.token_rows),
            ints(self.positions),
            self._table(self.expected_tags),
            ints(self.row_domains),
            ints(self.row_owners),
        ]

    def _table(self, rows: list[list[int]]) -> Tensor:
        return ints(chain.from_iterable(rows)).reshape(len(self.num_pages), self.max_pages)


def ints(numbers: Iterable[int]) -> Tensor:
    """int64, with the bits of an unsigned number as they are."""
    return torch.tensor([signed(number) for number in numbers], dtype=torch.int64)


def signed(number: int) -> int:
    """The int64 of the same 64 bits."""
    return number - 2**64 if number >= 2**63 else number


HIGH = 0x8001  # a domain whose tags are negative as int64


def one_row() -> Step:
    """Two pages of one row, which writes the second; a third page is another row's."""
    own = [pack(HIGH, 7), pack(HIGH, 8)]
    return Step(
        tags=[0, own[0], own[1], pack(3, 9)],
        states=[0, SEALED, ACTIVE, ACTIVE],
        refs=[0, 2, 1, 1],
        owners=[-1, -1, 50, 60],
        block_tables=[[1, 2, 0]],
        expected_tags=[[*own, 0]],
        row_domains=[HIGH],
        row_owners=[50],
        num_pages=[2],
        slots=[2 * PAGE_SIZE + 1],
        token_rows=[0],
        positions=[PAGE_SIZE + 1],
    )


def one_page() -> Step:
    """A pool of one page, and the row whose page it is."""
    own = pack(HIGH, 7)
    return Step(
        tags=[0, own],
        states=[0, ACTIVE],
        refs=[0, 1],
        owners=[-1, 50],
        block_tables=[[1]],
        expected_tags=[[own]],
        row_domains=[HIGH],
        row_owners=[50],
        num_pages=[1],
        slots=[PAGE_SIZE],
        token_rows=[0],
        positions=[0],
    )


def null_page_as_own() -> Step:
    """A row that would read and write the null page, which says of itself that it is the row's."""
    return replace(
        one_page(),
        states=[ACTIVE, ACTIVE],
        refs=[1, 1],
        owners=[50, 50],
        block_tables=[[0]],
        expected_tags=[[0]],
        row_domains=[0],
        slots=[1],
    )


domains = st.sampled_from([0, 1, 2, 0x7FFF, 0x8000, 0xFFFF])


@st.composite
def sound_steps(draw: st.DrawFn) -> Step:
    """A step in which every row has its own pages, and writes the last of them."""
    lengths = draw(st.lists(st.integers(0, 5), max_size=5))
    spare = draw(st.integers(0, 3))
    columns = max(lengths, default=0) + draw(st.integers(0, 2))
    ids = iter(draw(st.permutations(range(1, sum(lengths) + spare + 1))))
    generations = count(draw(st.sampled_from([1, 2**47, 2**48 - 2**32])))
    tags = [0] + [pack(0, next(generations)) for _ in range(sum(lengths) + spare)]
    row_domains = [draw(domains) for _ in lengths]
    tables = [[next(ids) for _ in range(length)] for length in lengths]
    states, refs, owners = [FREE] * len(tags), [0] * len(tags), [-1] * len(tags)
    for row, table in enumerate(tables):
        for page in table:
            tags[page] = pack(row_domains[row], next(generations))
            states[page], refs[page], owners[page] = SEALED, 1, row
        for page in table[-1:]:
            states[page] = ACTIVE
    written = [
        (table[-1] * PAGE_SIZE + offset, row, (len(table) - 1) * PAGE_SIZE + offset)
        for row, table in enumerate(tables)
        for offset in range(draw(st.integers(0, PAGE_SIZE)) if table else 0)
    ]
    return Step(
        tags=tags,
        states=states,
        refs=refs,
        owners=owners,
        block_tables=[table + [0] * (columns - len(table)) for table in tables],
        expected_tags=[
            [tags[page] for page in table] + [0] * (columns - len(table)) for table in tables
        ],
        row_domains=row_domains,
        row_owners=list(range(len(lengths))),
        num_pages=lengths,
        slots=[slot for slot, _, _ in written],
        token_rows=[row for _, row, _ in written],
        positions=[position for _, _, position in written],
    )


@st.composite
def harmed_steps(draw: st.DrawFn) -> Step:
    """A sound step in which up to four numbers, of any of its arrays, were overwritten."""
    step = draw(sound_steps())
    for _ in range(draw(st.integers(1, 4))):
        step = draw(_harmed(step))
    return step


@st.composite
def _harmed(draw: st.DrawFn, step: Step) -> Step:
    name = draw(st.sampled_from(sorted(_HARM)))
    numbers: list[Any] = [
        list(row) if isinstance(row, list) else row for row in getattr(step, name)
    ]
    if not numbers:
        return step
    values = _HARM[name]
    at = draw(st.integers(0, len(numbers) - 1))
    if isinstance(numbers[at], list):
        if numbers[at]:
            numbers[at][draw(st.integers(0, len(numbers[at]) - 1))] = draw(values)
    else:
        numbers[at] = draw(values)
    return replace(step, **{name: numbers})


_any_tag = st.builds(pack, domains, st.sampled_from([0, 1, 2, 2**47, 2**48 - 1]))
_near_or_far = st.integers(-2, 30) | st.sampled_from(FAR)
_HARM: dict[str, st.SearchStrategy[int]] = {
    "tags": _any_tag,
    "states": st.integers(0, 255),
    "refs": st.integers(-1, 3),
    "owners": _near_or_far,
    "block_tables": _near_or_far,
    "expected_tags": _any_tag,
    "row_domains": domains | st.sampled_from([-1, 0x10000, 2**62]),
    "row_owners": _near_or_far,
    "num_pages": st.integers(-1, 9),
    "slots": st.integers(-9, 120) | st.sampled_from(FAR),
    "token_rows": _near_or_far,
    "positions": st.integers(-9, 40) | st.sampled_from(FAR),
}
