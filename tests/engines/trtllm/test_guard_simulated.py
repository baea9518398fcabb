"""The guard behind TensorRT-LLM's objects, in a simulated TensorRT-LLM that lives as chance has it.

`test_block_manager` has the ledger alone. Here the same requests reach it by the way they take
inside TensorRT-LLM, what is told is read from the journal, and the tables that the passes read are
checked as those on a device are.
"""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from engines.trtllm.device_table import DeviceTable
from engines.trtllm.journal import Journal, read_state
from engines.trtllm.rows import Scheduled
from engines.trtllm.seen import request_of, scheduled_of, told_of
from engines.trtllm.shadow import Shadow
from engines.trtllm.stops import Stops
from engines.trtllm.violations import Violation
from engines.trtllm.watch import Watch
from tests.engines.trtllm.executor import Executor
from tests.engines.trtllm.lives import Lives
from tests.engines.trtllm.plants import CAUGHT, UNSEEN, Planted
from tests.engines.trtllm.setups import Request, Setup

LAYERS = 2
CLIENT = 1000  # beyond a request's own id
SEEDS = 40 if os.environ.get("BULKHEAD_SOAK") else 4
# Without whole lists, which a connector isn't told, and without partial reuse, which is refused.
SEEN = [name for name, (_, setup) in CAUGHT.items() if not setup.tables and not setup.partial]
RARE = {"stores what isn't computed"}  # a plant that does no harm in most lives


class Inside(Shadow):
    """In the ledger's place: hands on what it is told as TensorRT-LLM's objects would say it."""

    def __init__(self, folder: Path, setup: Setup) -> None:
        self.watch = Watch(folder, setup.size)
        self.watch.pool_is(setup.num_blocks)
        self.device = DeviceTable()
        self.device.pool_is(torch.zeros(setup.num_blocks, LAYERS, 2, 1))
        self._journal = Journal.follow(folder)
        self._begun: set[int] = set()
        self._known: set[int] = set()
        self._is_passing = False

    def allocated(
        self,
        request: int,
        salt: str | int | None,
        blocks: Sequence[int],
        computed_tokens: int,
        tokens: Sequence[int] = (),
        adapter: int = 0,
    ) -> list[Violation]:
        found = SimpleNamespace(
            request_id=request,
            py_client_id=request + CLIENT,
            cache_salt=salt,
            context_current_position=computed_tokens,
            get_tokens=lambda _beam: list(tokens),
        )
        self._end_pass()
        self._begun.add(request)
        self.watch.allocated(request_of(found, blocks, None))
        return self._new()

    def step(self, scheduled: Iterable[Scheduled]) -> list[Violation]:
        output = SimpleNamespace(new_requests=[], cached_requests=[])
        for item in scheduled:
            is_known = item.request in self._known
            self._known.add(item.request)
            (output.cached_requests if is_known else output.new_requests).append(
                SimpleNamespace(
                    request_id=item.request,
                    new_tokens=list(item.new_tokens),
                    new_block_ids=list(item.new_blocks),
                    computed_position=item.computed_position,
                    num_scheduled_tokens=item.num_tokens,
                )
            )
        begun, self._begun = self._begun, set()
        self._end_pass()
        self.watch.step(scheduled_of(output))
        self._is_passing = True
        self.device.start(pickle.loads(pickle.dumps(told_of(output, begun))))
        return self._new()

    def finished(self, request: int, blocks: Sequence[int] | None = None) -> list[Violation]:
        self.watch.finished(request, blocks)
        return self._new()

    def failed(self) -> None:
        """TensorRT-LLM doesn't say so: what follows a pass isn't called."""
        self._is_passing = False

    def _end_pass(self) -> None:
        if self._is_passing:
            self.watch.passed()
        self._is_passing = False

    def _new(self) -> list[Violation]:
        return [
            Violation(*(line[field] for field in Violation._fields))
            for line in self._journal.new_lines()
        ]


class Passes:
    """The tables of the passes, as attention would have them on a device."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._rows: list[tuple[Request, list[int]]] = []
        self._meddle = executor.meddle
        executor.meddle = self._look_on

    def _look_on(self, point: str, request: Request, blocks: list[int]) -> None:
        """Behind whoever meddles; he may end it by putting another in his place."""
        ours, self._executor.meddle = self._executor.meddle, self._meddle
        self._meddle(point, request, blocks)
        self._meddle, self._executor.meddle = self._executor.meddle, ours
        if point == "table":
            self._rows.append((request, list(blocks)))

    def filled(self, device: DeviceTable) -> list[Request]:
        """The last pass's table is looked at: the requests whose row is at fault."""
        rows, self._rows = self._rows, []
        if not rows:
            return []
        table = torch.zeros(1, len(rows), 2, max(len(blocks) for _, blocks in rows))
        for row, (_, blocks) in enumerate(rows):
            keys = torch.tensor(blocks) * LAYERS * 2
            table[0, row, 0, : len(blocks)], table[0, row, 1, : len(blocks)] = keys, keys + 1
        device.filled(table.to(torch.int32), [request.id for request, _ in rows])
        faulty = {request for request, _ in device.faults()}
        return [request for request, _ in rows if request.id in faulty]


def lives(folder: Path, planted: Planted, seed: int) -> Iterator[tuple[Inside, Lives, Passes]]:
    inside = Inside(folder, planted.setup)
    life = Lives(planted.setup, seed, shadow=inside)
    yield from _steps(inside, life, Passes(life.executor), 60)
    planted.plant(life.executor, random.Random(seed))
    yield from _steps(inside, life, Passes(life.executor), 60)


def _steps(
    inside: Inside, life: Lives, passes: Passes, number: int
) -> Iterator[tuple[Inside, Lives, Passes]]:
    for _ in life.steps(number):
        yield inside, life, passes


def nothing(executor: Executor, chance: random.Random) -> None:
    """Planted where nothing is to be found."""


@pytest.mark.parametrize(
    "setup", [Setup(), Setup(tells_cancels=True), Setup(reuses=False)], ids=str
)
def test_a_sound_life_is_left_alone(tmp_path: Path, setup: Setup) -> None:
    steps = 0
    for inside, life, passes in lives(tmp_path, Planted(nothing, setup), seed=1):
        steps += 1
        assert passes.filled(inside.device) == []
        assert life.executor.told == []
    state = read_state(tmp_path)
    assert state is not None
    assert (state.steps, state.violations, state.is_poisoned) == (steps, 0, False)
    assert inside.device.num_checked > steps
    assert not inside.device.is_off


@pytest.mark.parametrize("name", SEEN)
def test_whom_the_ledger_blames_is_stopped_by_name(tmp_path: Path, name: str) -> None:
    """By the time that anybody has read what isn't his, and it alone."""
    harmed = set()
    for seed in range(SEEDS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        for inside, life, _ in lives(folder, CAUGHT[name], seed):
            stops = Stops.open(folder)
            assert stops is not None
            blamed = {v.request for v in life.executor.told}
            ids = {r.id for r in life.executor.running} | blamed
            assert {one for one in ids if stops.must_stop(one + CLIENT)} == blamed
            assert life.executor.warned.issuperset(life.executor.harmed)
            assert not inside.watch.is_poisoned
            harmed.update(blamed)
            life.end_blamed()
    assert harmed or name in RARE


@pytest.mark.parametrize(
    "name", ["a foreign block in place", "a foreign block in the table on the device"]
)
def test_what_the_ledger_cannot_see_the_check_of_the_table_does(tmp_path: Path, name: str) -> None:
    """Each pass that reads a foreign block is found at fault before its tokens go out."""
    harmed = 0
    for seed in range(SEEDS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        for inside, life, passes in lives(folder, UNSEEN[name], seed):
            faulty = passes.filled(inside.device)
            # A request that ends gives the foreign block back, too: the ledger tells what follows.
            assert life.executor.warned.union(faulty).issuperset(life.executor.harmed)
            harmed += len(set(life.executor.harmed) & set(faulty))
            for request in faulty:
                life.executor.cancel(request)
    assert harmed
