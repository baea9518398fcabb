"""The spike's plugin for vLLM, as far as it needs no vLLM: its ledger, its check, its refusals."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from subprocess import PIPE
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import bulkhead_vllm_tags as plugin
from benchmarks.stale_page import PLUGIN
from bulkhead_vllm_tags import shared
from bulkhead_vllm_tags.check import astray_rows, broken_rows
from bulkhead_vllm_tags.ledger import GENERATION_BITS, NULL_BLOCK, NUM_SLOTS, Ledger
from bulkhead_vllm_tags.patching import around
from bulkhead_vllm_tags.scheduler import unfit
from bulkhead_vllm_tags.worker import Watch

BLOCK_SIZE = 4


def ledger(num_blocks: int = 8) -> Ledger:
    return Ledger(np.zeros(num_blocks, np.uint64))


def give(book: Ledger, request: str, domain: str, *blocks: int) -> None:
    """What the manager's and the pool's wrappers do when a request gets blocks."""
    with book.allocating_for(request, domain):
        book.allocated(blocks)
    book.hold(request, blocks)


def slot_of(book: Ledger, block: int) -> int:
    return int(book.tags[block]) >> GENERATION_BITS


def test_no_tag_comes_twice() -> None:
    """Neither among blocks, nor when one is given up, nor when it is given out again."""
    book = ledger()
    seen = book.tags.tolist()
    for request in ("a", "b"):
        give(book, request, "x", 1)
        seen.append(int(book.tags[1]))
        book.given_up([1])
        seen.append(int(book.tags[1]))
    assert len(set(seen)) == len(seen)
    assert 0 not in seen


def test_a_request_keeps_the_tags_that_it_was_given() -> None:
    book = ledger()
    give(book, "a", "x", 1, 2)
    assert book.still_held("a", [1, 2]) == [True, True]
    book.given_up([1])
    assert book.still_held("a", [1, 2]) == [False, True]
    give(book, "b", "y", 1)
    assert book.still_held("a", [1, 2]) == [False, True]
    assert book.still_held("b", [1]) == [True]
    assert slot_of(book, 1) != slot_of(book, 2)


def test_a_slot_is_used_again_only_when_nobody_has_it() -> None:
    """Blocks that are still cached have it, too."""
    book = ledger()
    give(book, "a", "x", 1)
    slot = slot_of(book, 1)
    book.forget("a")
    give(book, "b", "x", 2)
    assert slot_of(book, 2) == slot
    book.forget("b")
    for number in range(NUM_SLOTS - 2):
        give(book, f"r{number}", f"d{number}", 3)
        assert slot_of(book, 3) != slot
        book.forget(f"r{number}")
    book.given_up([1, 2, 3])
    for number in range(NUM_SLOTS):
        give(book, f"s{number}", f"e{number}", 3)
        book.forget(f"s{number}")
        if slot_of(book, 3) == slot:
            return
    raise AssertionError("a slot was lost")


def test_the_null_block_is_nobodys() -> None:
    book = ledger()
    before = int(book.tags[NULL_BLOCK])
    give(book, "a", "x", NULL_BLOCK)
    assert int(book.tags[NULL_BLOCK]) == before


def test_an_entry_of_a_block_that_was_given_up_is_a_miss() -> None:
    book = ledger()
    give(book, "a", "x", 1)
    book.entered(b"key", 1)
    assert book.is_entry_current(b"key", 1)
    book.given_up([1])
    assert not book.is_entry_current(b"key", 1)
    book.entered(b"key", 1)
    book.removed(b"key", 1)
    assert not book.is_entry_current(b"key", 1)
    book.entered(b"key", 1)
    book.no_entries()
    assert not book.is_entry_current(b"key", 1)


def test_the_worker_is_told_what_is_new() -> None:
    book = ledger()
    give(book, "a", "x", 1, 2)
    first = book.news(["a"])["a"]
    assert (first.start, len(first.tags)) == (0, 2)
    assert book.news(["a"]) == {}
    with book.allocating_for("a", "x"):
        book.allocated([3])
    book.hold("a", [3])
    assert book.news(["a"])["a"].start == 2
    book.forget("a")  # preempted: it starts anew
    give(book, "a", "x", 4)
    assert book.news(["a"])["a"].start == 0


def test_each_kind_of_wrong_place_breaks_its_row_alone() -> None:
    book = ledger()
    give(book, "a", "x", 1, 2)
    give(book, "b", "y", 3)
    rows = [np.array(book.rows[r].tags, np.uint64) for r in ("a", "b")]
    slots = [book.rows[r].slot for r in ("a", "b")]
    num_blocks = np.array([2, 1])

    def broken(*table: list[int]) -> list[int]:
        return broken_rows(book.tags, np.array(table, np.int32), num_blocks, rows, slots)

    assert broken([1, 2, 99], [3, 0, 99]) == []
    assert broken([1, 3, 0], [3, 0, 0]) == [0]
    assert broken([1, 2, 0], [1, 0, 0]) == [1]
    assert broken([1, NULL_BLOCK, 0], [3, 0, 0]) == [0]
    assert broken([1, 8, 0], [-1, 0, 0]) == [0, 1]
    assert broken_rows(book.tags, np.array([[1, 2]], np.int32), np.array([2]), rows[1:], [2]) == [0]
    slots[1] = slots[0]  # a right tag, and a row of another domain
    assert broken([1, 2, 0], [3, 0, 0]) == [1]
    assert broken_rows(book.tags, np.zeros((0, 2), np.int32), np.zeros(0, np.int64), [], []) == []


def test_a_row_that_would_write_elsewhere_is_astray() -> None:
    """A prompt of six tokens in blocks 5 and 2, and the ninth token of another in block 7."""
    table = np.array([[5, 2, 0], [1, 3, 7]], np.int32)
    lengths, starts = np.array([6, 9]), np.array([0, 6, 7])
    right = [20, 21, 22, 23, 8, 9, 28]

    def astray(slots: list[int]) -> list[int]:
        return astray_rows(table, lengths, starts, np.array(slots), BLOCK_SIZE)

    assert astray(right) == []
    assert astray([*right, -1, -1]) == []  # padding
    assert astray([*right[:-1], 29]) == [1]
    assert astray([-1, *right[1:]]) == [0]


class Stepped:
    """A worker beside a scheduler, in which blocks change hands at random."""

    def __init__(self, num_blocks: int, seed: int) -> None:
        self.path, tags = shared.create(num_blocks)
        self.book = Ledger(tags)
        self.watch = Watch()
        self.free = list(range(1, num_blocks))
        self.tables: dict[str, list[int]] = {}
        self.ended: set[str] = set()
        self.chance = random.Random(seed)
        self._number = 0

    def come(self) -> None:
        self._number += 1
        self.tables[f"r{self._number}"] = []

    def grow(self, request: str) -> None:
        with self.book.allocating_for(request, f"d{int(request[1:]) % 3}"):
            block = self.free.pop(self.chance.randrange(len(self.free)))
            self.book.allocated([block])
        self.book.hold(request, [block])
        self.tables[request].append(block)

    def end(self, request: str) -> None:
        blocks = self.tables.pop(request)
        self.book.given_up(blocks)
        self.book.forget(request)
        self.free += blocks
        self.ended.add(request)

    def preempt(self, request: str) -> None:
        self.book.given_up(self.tables[request])
        self.book.forget(request)
        self.free += self.tables[request]
        self.tables[request] = []

    def step(self) -> dict[str, str]:
        """All requests with blocks compute; who is broken."""
        names = [name for name, table in self.tables.items() if table]
        self.watch.begin(self.path, self.book.news(names), self.ended, bool(names))
        self.ended = set()
        if names:
            self.watch.before(names, self.metadata(names), BLOCK_SIZE)
            self.watch.after()
        return self.watch.broken

    def metadata(self, names: list[str]) -> Any:
        table = torch.zeros((len(names), 32), dtype=torch.int32)
        for row, name in enumerate(names):
            table[row, : len(self.tables[name])] = torch.tensor(self.tables[name])
        lengths = [len(self.tables[name]) * BLOCK_SIZE for name in names]
        last = [(self.tables[name][-1] + 1) * BLOCK_SIZE - 1 for name in names]
        return SimpleNamespace(
            block_table=table,
            seq_lens=torch.tensor(lengths, dtype=torch.int32),
            query_start_loc=torch.arange(len(names) + 1),
            slot_mapping=torch.tensor(last),
        )


def moved(world: Stepped) -> None:
    """One thing happens that may."""
    names = list(world.tables)
    act = world.chance.random()
    if act < 0.2 or not names:
        world.come()
    elif act < 0.8 and world.free:
        name = world.chance.choice(names)
        if len(world.tables[name]) < 32:
            world.grow(name)
    elif act < 0.9:
        world.end(world.chance.choice(names))
    elif world.tables[name := world.chance.choice(names)]:
        world.preempt(name)


@pytest.mark.parametrize("seed", range(5))
def test_a_sound_pool_breaks_nothing_and_a_stale_page_breaks_its_request(seed: int) -> None:
    world = Stepped(40, seed)
    planted = 0
    for _ in range(600):
        moved(world)
        assert world.step() == {}
        victims = [name for name, table in world.tables.items() if table]
        if not victims or not world.free or world.chance.random() > 0.1:
            continue
        # A page of a running request is given up, and given to another one.
        victim = world.chance.choice(victims)
        page = world.chance.choice(world.tables[victim])
        world.book.given_up([page])
        if world.chance.random() < 0.5:
            world.come()
            other = list(world.tables)[-1]
            world.free, kept = [page], world.free
            world.grow(other)
            world.free = kept
        else:
            other = ""
        assert world.step() == {victim: "before"}
        planted += 1
        world.tables[victim].remove(page)
        if not other:
            world.free.append(page)
        world.end(victim)
    assert planted > 10


def test_a_broken_row_reads_and_writes_the_null_block() -> None:
    world = Stepped(8, 0)
    for _ in range(2):
        world.come()
    for name in ("r1", "r1", "r2"):
        world.grow(name)
    world.book.given_up(world.tables["r1"][:1])
    world.watch.begin(world.path, world.book.news(world.tables), set(), True)
    metadata = world.metadata(["r1", "r2"])
    table, slots = metadata.block_table.clone(), metadata.slot_mapping.clone()
    world.watch.before(["r1", "r2"], metadata, BLOCK_SIZE)
    assert world.watch.broken == {"r1": "before"}
    assert not metadata.block_table[0].any()
    assert metadata.slot_mapping[0] == BLOCK_SIZE - 1
    assert torch.equal(metadata.block_table[1], table[1])
    assert metadata.slot_mapping[1] == slots[1]


def test_a_page_that_goes_while_the_step_runs_is_seen_before_its_token_leaves() -> None:
    world = Stepped(8, 0)
    world.come()
    world.grow("r1")
    assert world.step() == {}
    world.book.given_up(world.tables["r1"])
    world.watch.after()
    assert world.watch.broken == {"r1": "after"}


def test_another_process_sees_the_tags_as_they_change() -> None:
    path, tags = shared.create(4)
    book = Ledger(tags)
    look = (
        "import sys; import numpy as np; from bulkhead_vllm_tags.shared import attach;"
        "tags = attach(sys.argv[1]); print(tags[1], flush=True); input(); print(tags[1]);"
        "assert not tags.flags.writeable"
    )
    argv = [sys.executable, "-c", look, path]
    env = os.environ | {"PYTHONPATH": str(PLUGIN)}
    with subprocess.Popen(argv, env=env, stdin=PIPE, stdout=PIPE, text=True) as other:
        assert other.stdin
        assert other.stdout
        before = int(tags[1])
        assert int(other.stdout.readline()) == before
        give(book, "a", "x", 1)
        other.stdin.write("\n")
        other.stdin.flush()
        assert int(other.stdout.readline()) == int(tags[1]) != before
    assert other.returncode == 0


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "version", lambda name: "0.33.1+cpu")
    plugin.register.cache_clear()
    with pytest.raises(plugin.Refused, match=r"vLLM 0\.32\.0, and this is 0\.33\.1: install"):
        plugin.register()


def configuration(**changes: Any) -> Any:
    sound = {
        "scheduler_config": SimpleNamespace(async_scheduling=False),
        "use_v2_model_runner": False,
        "speculative_config": None,
        "kv_transfer_config": None,
        "parallel_config": SimpleNamespace(world_size=1),
    }
    return SimpleNamespace(**sound | changes)


def test_what_tags_cant_follow_is_refused() -> None:
    assert unfit(configuration(), 1) == ""
    assert "2 groups" in unfit(configuration(), 2)
    assert "async" in unfit(
        configuration(scheduler_config=SimpleNamespace(async_scheduling=True)), 1
    )
    assert "workers" in unfit(configuration(parallel_config=SimpleNamespace(world_size=2)), 1)
    wrong = unfit(
        configuration(use_v2_model_runner=True, speculative_config=1, kv_transfer_config=1), 1
    )
    assert wrong.count(";") == 2


def test_a_method_is_wrapped_where_it_is() -> None:
    class Owner:
        def method(self, number: int) -> int:
            return number

    @around(Owner, "method")
    def _(inner: Any, self: Any, number: int) -> int:
        return int(inner(self, number)) + 1

    assert Owner().method(1) == 2
    with pytest.raises(AttributeError):
        around(Owner, "gone")(lambda inner, self: None)
