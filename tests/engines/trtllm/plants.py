"""What is planted in TensorRT-LLM's books, for the ledger to find: each once, or for good.

`CAUGHT` are told before anybody reads what isn't its own; `UNSEEN` can't be, for nothing that a
connector is told differs from a sound run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.engines.trtllm.executor import Executor
from tests.engines.trtllm.setups import Request, Setup

Plant = Callable[[Executor, random.Random], None]


class Planted(NamedTuple):
    plant: Plant
    setup: Setup = Setup()


def _foreign(executor: Executor, request: Request, chance: random.Random) -> int | None:
    """A block of a request that runs for another salt."""
    blocks = [
        block
        for other in executor.running
        if other.salt != request.salt and other.has_blocks
        for block in executor.blocks_of(other)
        if block >= 0
    ]
    return chance.choice(blocks) if blocks else None


def _meddles(
    point: str, choose: Callable[[Executor, Request, list[int], random.Random], bool]
) -> Plant:
    """At the next such point where `choose` finds something to do, and then no more."""

    def plant(executor: Executor, chance: random.Random) -> None:
        def meddle(where: str, request: Request, blocks: list[int]) -> None:
            if where == point and choose(executor, request, blocks, chance):
                executor.meddle = lambda point, request, blocks: None

        executor.meddle = meddle

    return plant


def _puts(executor: Executor, blocks: list[int], indexes: Sequence[int], block: int | None) -> bool:
    places = [index for index in indexes if blocks[index] != block]
    if block is None or not places:
        return False
    blocks[places[len(places) // 2]] = block
    return True


def _foreign_in_growth(
    executor: Executor, request: Request, blocks: list[int], chance: random.Random
) -> bool:
    return _puts(executor, blocks, [len(blocks) - 1], _foreign(executor, request, chance))


def _foreign_in_prompt(
    executor: Executor, request: Request, blocks: list[int], chance: random.Random
) -> bool:
    own = range(request.position // executor.setup.size, len(blocks))
    return _puts(executor, blocks, own, _foreign(executor, request, chance))


def _foreign_in_prefix(
    executor: Executor, request: Request, blocks: list[int], chance: random.Random
) -> bool:
    hits = range(request.position // executor.setup.size)
    return _puts(executor, blocks, hits, _foreign(executor, request, chance))


def _foreign_anywhere(
    executor: Executor, request: Request, blocks: list[int], chance: random.Random
) -> bool:
    """Of what was told of before, which only a whole list shows."""
    if request.is_prefilling:
        return False
    read = range(min(request.position // executor.setup.size, len(blocks)))
    return _puts(executor, blocks, read, _foreign(executor, request, chance))


def _twice(executor: Executor, request: Request, blocks: list[int], chance: random.Random) -> bool:
    own = range(request.position // executor.setup.size, len(blocks))
    return len(own) > 1 and _puts(executor, blocks, own[1:], blocks[own[0]])


def _outside(
    executor: Executor, request: Request, blocks: list[int], chance: random.Random
) -> bool:
    return _puts(executor, blocks, [len(blocks) - 1], executor.setup.num_blocks + 3)


def _flaw(name: str) -> Plant:
    def plant(executor: Executor, chance: random.Random) -> None:
        executor.flaws.add(name)

    return plant


def frees_behind_its_back(executor: Executor, chance: random.Random) -> None:
    """A request runs on, though its blocks are free."""
    running = [request for request in executor.running if request.has_blocks]
    if running:
        executor.manager.release(executor.blocks_of(chance.choice(running)))


CAUGHT = {
    "a foreign block is gained": Planted(_meddles("grown", _foreign_in_growth)),
    "a foreign block to be written": Planted(_meddles("given", _foreign_in_prompt)),
    "a foreign block as a hit": Planted(_meddles("given", _foreign_in_prefix)),
    "a foreign block in place, seen": Planted(
        _meddles("listed", _foreign_anywhere), Setup(tables=True)
    ),
    "a block twice in a row": Planted(_meddles("given", _twice)),
    "a block outside the pool": Planted(_meddles("given", _outside)),
    "a block outside the pool is gained": Planted(_meddles("grown", _outside)),
    "blocks are freed in use": Planted(frees_behind_its_back),
    "frees what is used": Planted(_flaw("frees what is used")),
    "salts nothing": Planted(_flaw("salts nothing")),
    "takes over what is used": Planted(_flaw("takes over what is used"), Setup(partial=True)),
    "keeps the keys of what it takes": Planted(_flaw("keeps the keys of what it takes")),
    "never grows": Planted(_flaw("never grows")),
    "stores what isn't computed": Planted(
        _flaw("stores what isn't computed"), Setup(chunk=4, num_blocks=40)
    ),
    "a pass breaks off": Planted(_flaw("a pass breaks off")),
    "copies from another salt": Planted(_flaw("copies from another salt"), Setup(partial=True)),
    "counts more than it found": Planted(_flaw("counts more than it found")),
}
UNSEEN = {
    "copies the wrong block": Planted(_flaw("copies the wrong block"), Setup(partial=True)),
    "a pass breaks off untold": Planted(_flaw("a pass breaks off untold")),
    "a foreign block in place": Planted(_meddles("listed", _foreign_anywhere)),
    "a foreign block in the table on the device": Planted(
        _meddles("table", _foreign_anywhere), Setup(tables=True)
    ),
}
