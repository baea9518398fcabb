"""The native look at a step says what its twins in numpy and torch say, whatever stands in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from torch import Tensor

from engines.embedded.batch import Batch
from engines.embedded.pages import State
from engines.embedded.verify import Verifier
from engines.kernels import native, tag_check
from tests.engines.kernels.reference import (
    ACTIVE,
    FAR,
    HIGH,
    PAGE_SIZE,
    Step,
    harmed_steps,
    null_page_as_own,
    one_page,
    one_row,
    pack,
    sound_steps,
)

pytestmark = pytest.mark.skipif(not native.IS_BUILT, reason="the native module isn't built")
FAULTY_SLOTS: Callable[..., Tensor] = tag_check.faulty_slots
ISAS = native.module.isas() if native.IS_BUILT else []


def batch_of(step: Step, public: list[int] | None = None, copies: Any = ()) -> Batch:
    """Of each row so many leading pages are domain 3's; `copies`: (page, tag, domain)."""
    rows = len(step.num_pages)
    sources, tags, domains = zip(*copies, strict=True) if copies else ((), (), ())
    table = (rows, step.max_pages)
    return Batch(
        chunks=cast(Any, [None] * rows),
        input_ids=ints([0] * len(step.slots)),
        positions=ints(step.positions),
        token_rows=ints(step.token_rows),
        slot_mapping=ints(step.slots),
        block_tables=ints([page for row in step.block_tables for page in row]).reshape(table),
        expected_tags=unsigned([t for row in step.expected_tags for t in row]).reshape(table),
        row_domains=ints(step.row_domains),
        row_owners=ints(step.row_owners),
        num_public=ints(public or [0] * rows),
        public_domains=ints([3] * rows),
        context_lens=ints([0] * rows),
        query_lens=ints([0] * rows),
        num_pages=ints(step.num_pages),
        copy_rows=ints([0] * len(sources)),
        copy_sources=ints(sources),
        copy_tags=unsigned(tags),
        copy_domains=ints(domains),
    )


def ints(numbers: Any) -> Any:
    return np.array(numbers, np.int64)


def unsigned(numbers: Any) -> Any:
    return np.array(numbers, np.uint64)


def pool_of(step: Step) -> Any:
    return SimpleNamespace(
        tags=unsigned(step.tags),
        states=np.array(step.states, np.uint8),
        refs=np.array(step.refs, np.int32),
        owners=ints(step.owners),
    )


def look(step: Step, batch: Batch, guards: bool) -> tuple[int, bool]:
    """What the native looks say: one and the same, on each instruction set."""
    pool = pool_of(step)
    arrays = (pool.tags, pool.states, pool.refs, pool.owners, PAGE_SIZE, ACTIVE)
    found = {native.module.PageCheck(*arrays, isa).look(batch.view, guards) for isa in ISAS}
    (only,) = found
    return only


def in_numpy(step: Step, batch: Batch, guards: bool) -> tuple[int, bool]:
    """The twin of the whole look. A token of no row has it raise."""
    as_the_pool_has_it = {ACTIVE: int(State.ACTIVE), int(State.ACTIVE): ACTIVE}
    states = [as_the_pool_has_it.get(state, state) for state in step.states]
    verifier = Verifier(pool_of(replace(step, states=states)), PAGE_SIZE, "enforce")
    num_read, _ = verifier._look_in_numpy(batch, False)
    try:
        return verifier._look_in_numpy(batch, guards)
    except IndexError:
        return num_read, False


def is_right(step: Step, guards: bool) -> bool:
    pages = tag_check.faulty_pages(*step.page_arrays())
    slots = FAULTY_SLOTS(*step.slot_arrays(), PAGE_SIZE, ACTIVE)
    return not (pages.any() or (guards and slots.any()))


@given(sound_steps() | harmed_steps(), st.booleans())
@example(one_row(), True)
@example(one_page(), True)
@example(null_page_as_own(), True)
def test_a_step_is_as_the_torch_twin_finds_it(step: Step, guards: bool) -> None:
    num_read = sum(min(max(count, 0), step.max_pages) for count in step.num_pages)
    assert look(step, batch_of(step), guards) == (num_read, is_right(step, guards))


@st.composite
def public_steps(draw: st.DrawFn) -> tuple[Step, list[int]]:
    """Leading pages of rows are domain 3's, or should be; rows claim more or less of them."""
    step = draw(sound_steps())
    public = [draw(st.integers(0, 3)) for _ in step.num_pages]
    tags = list(step.tags)
    for table, length, count in zip(step.block_tables, step.num_pages, public, strict=True):
        for page in table[: min(length, count)]:
            tags[page] = pack(3, tags[page] & (2**48 - 1))
    expected = [
        [tags[page] if place < length else 0 for place, page in enumerate(table)]
        for table, length in zip(step.block_tables, step.num_pages, strict=True)
    ]
    claimed = [draw(st.sampled_from([count] * 6 + [count + 1, 0, -1])) for count in public]
    return replace(step, tags=tags, expected_tags=expected), claimed


@given(public_steps(), st.booleans())
def test_public_pages_are_as_the_twin_finds_them(drawn: Any, guards: bool) -> None:
    step, public = drawn
    batch = batch_of(step, public)
    assert look(step, batch, guards) == in_numpy(step, batch, guards)


@given(harmed_steps(), st.data())
def test_public_pages_of_harmed_steps_too(step: Step, data: st.DataObject) -> None:
    public = [data.draw(st.integers(-2, 7)) for _ in step.num_pages]
    batch = batch_of(step, public)
    assert look(step, batch, True) == in_numpy(step, batch, True)


copied = st.tuples(
    st.integers(-2, 4) | st.sampled_from(FAR),
    st.sampled_from([pack(HIGH, 7), pack(HIGH, 8), pack(3, 9), 0]),
    st.sampled_from([HIGH, 3, 0, -1, HIGH - 0x10000]),
)


@given(st.lists(copied, max_size=3))
@example([(1, pack(HIGH, 7), HIGH), (3, pack(3, 9), 3)])
def test_copied_pages_are_as_the_twin_finds_them(copies: Any) -> None:
    batch = batch_of(one_row(), copies=copies)
    found = look(one_row(), batch, True)
    assert found == in_numpy(one_row(), batch, True)
    assert found[0] == 2 + len(copies)


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 7, 8, 9, 16, 31, 64, 65, 77])
def test_each_place_of_a_long_row_is_looked_at(length: int) -> None:
    """Whatever is looked at at once, the ends and all between them count."""
    pages = list(range(1, length + 1))
    step = replace(
        one_page(),
        tags=[0, *(pack(HIGH, page) for page in pages)],
        states=[ACTIVE] * (length + 1),
        refs=[1] * (length + 1),
        owners=[50] * (length + 1),
        block_tables=[[*pages, 2**62]],
        expected_tags=[[*(pack(HIGH, page) for page in pages), 0]],
        num_pages=[length],
        slots=[],
        token_rows=[],
        positions=[],
    )
    assert look(step, batch_of(step), True) == (length, True)
    for place in range(length):
        for name, wrong in (("block_tables", 0), ("expected_tags", pack(HIGH, 99))):
            row = list(getattr(step, name)[0])
            row[place] = wrong
            harmed = replace(step, **cast(Any, {name: [row]}))
            assert look(harmed, batch_of(harmed), True) == (length, False)


@pytest.mark.parametrize("seed", range(8))
def test_one_wrong_page_in_long_rows_is_found_wherever_it_is(seed: int) -> None:
    """Rows of all lengths, partly public, over a pool in no order; one place at most is off."""
    chance = np.random.default_rng(seed)
    step, public = _long_rows(chance)
    batch = batch_of(step, public)
    assert look(step, batch, False) == in_numpy(step, batch, False) == (sum(step.num_pages), True)
    for _ in range(40):
        row = int(chance.choice(np.flatnonzero(step.num_pages)))
        place = int(chance.integers(step.num_pages[row]))
        harmed = batch_of(step, public)
        if chance.integers(2):
            harmed.block_tables[row, place] = chance.choice([*FAR, 0, len(step.tags)])
        else:
            harmed.expected_tags[row, place] ^= np.uint64(1) << np.uint64(chance.integers(64))
        found = look(step, harmed, False)
        assert found == in_numpy(step, harmed, False)
        is_same = harmed.block_tables[row, place] == batch.block_tables[row, place]
        is_same &= harmed.expected_tags[row, place] == batch.expected_tags[row, place]
        assert found == (sum(step.num_pages), bool(is_same))


def _long_rows(chance: np.random.Generator) -> tuple[Step, list[int]]:
    lengths = [int(length) for length in chance.integers(0, 150, size=5)]
    public = [int(chance.integers(0, length + 2)) for length in lengths]
    num_pages = sum(lengths) + 1
    order, tags = iter(chance.permutation(np.arange(1, num_pages)).tolist()), [0] * num_pages
    tables, expected = [], []
    for row, length in enumerate(lengths):
        table = [next(order) for _ in range(length)]
        for place, page in enumerate(table):
            tags[page] = pack(3 if place < public[row] else HIGH + row, 1000 + page)
        padding = [0] * (max(lengths) - length)
        tables.append(table + padding)
        expected.append([tags[page] for page in table] + padding)
    pool = (tags, [ACTIVE] * num_pages, [1] * num_pages, [50] * num_pages)
    domains = [HIGH + row for row in range(len(lengths))]
    return Step(*pool, tables, expected, domains, [50] * len(lengths), lengths), public


def test_what_is_overwritten_later_is_seen() -> None:
    """The view is of the very arrays, and so is the check's of the pool's."""
    step, pool = one_row(), pool_of(one_row())
    check = native.module.PageCheck(
        pool.tags, pool.states, pool.refs, pool.owners, PAGE_SIZE, ACTIVE
    )
    batch = batch_of(step)
    assert check.look(batch.view, True) == (2, True)
    batch.block_tables[0, 0] = 3
    assert check.look(batch.view, True) == (2, False)
    batch.block_tables[0, 0] = 1
    pool.tags[1] += 1
    assert check.look(batch.view, True) == (2, False)


def test_arrays_that_do_not_fit_each_other_are_refused() -> None:
    batch = batch_of(one_row())
    odd: list[tuple[str, Any, str]] = [
        (
            "block_tables",
            batch.block_tables[:, :2].copy(),
            r"expected_tags has shape \[1, 3\] .*2\]",
        ),
        ("positions", ints([1, 2]), r"positions has shape \[2\] instead of \[1\]"),
        ("num_pages", ints([]), "num_pages has shape"),
        ("copy_tags", unsigned([1]), "copy_tags has shape"),
        ("row_domains", ints([[1]]), r"row_domains has shape \[1, 1\]"),
        ("block_tables", ints([[1, 0, 2, 0, 0, 0]])[:, ::2], "block_tables is no contiguous array"),
        ("slot_mapping", ints([1]).astype(np.int32), "slot_mapping holds .*i instead of int64"),
        ("slot_mapping", ints([1]).astype(float), "slot_mapping holds .*d instead of int64"),
        ("expected_tags", ints([[1, 2, 3]]), "expected_tags holds .* instead of uint64"),
        ("copy_rows", [1], "copy_rows is no contiguous array"),
        ("block_tables", ints([1, 2, 3]), "block_tables must have two dimensions"),
    ]
    for name, value, what in odd:
        with pytest.raises(ValueError, match=what):
            replace(batch, **cast(Any, {name: value}))


def test_a_pool_whose_arrays_do_not_fit_each_other_is_refused() -> None:
    def check(**changes: Any) -> None:
        pool = SimpleNamespace(**(vars(pool_of(one_row())) | changes))
        native.module.PageCheck(
            pool.tags, pool.states, pool.refs, pool.owners, PAGE_SIZE, int(State.ACTIVE)
        )

    for name, value, what in (
        ("tags", unsigned([]), "tags is empty"),
        ("states", np.zeros(3, np.uint8), "states has shape"),
        ("states", np.zeros(4, np.int64), "states holds"),
        ("refs", np.zeros(5, np.int32), "refs has shape"),
        ("owners", np.zeros(4, np.uint64), "owners holds"),
    ):
        with pytest.raises(ValueError, match=what):
            check(**{name: value})
