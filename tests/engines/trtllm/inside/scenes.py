"""What the guard makes of what TensorRT-LLM does: each scene in a process of its own.

A script: `-m tests.engines.trtllm.inside.scenes FOLDER SCENE...` prints what came of each scene as
one JSON object. What a scene returns, `test_guard` judges.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from tests.engines.trtllm.inside import failing
from tests.engines.trtllm.inside.loop import (
    HAS_HOOK,
    PLAIN,
    Executor,
    Request,
    begun,
    pair,
    places,
    result,
)


def scene_sound() -> Any:
    """Decode steps that add blocks and such that add none; an end; a block that is used again."""
    executor, one, other = begun()
    metadata = []
    for _ in range(6):
        metadata.append(executor.iterate([one, other]))
    executor.finish(other)
    third = Request(102, 4, "tenant b", list(range(50, 60)), [3, 6, 7], matched=4)
    executor.admit(third)
    metadata.append(executor.iterate([one, third]))
    return result(one, other, third) | {"metadata": metadata}


def scene_foreign() -> Any:
    """A request of another salt finds its prompt's beginning in a block of the first tenant."""
    executor, one, other = begun()
    thief = Request(102, 4, "tenant b", list(range(9)), [0, 6, 7], matched=4)
    executor.admit(thief)
    for _ in range(3):
        executor.iterate([one, other, thief])
    return result(one, other, thief)


def scene_ended() -> Any:
    """A request that has ended runs on, and a block of it has gone to another: it has its name."""
    executor, one, other = begun()
    executor.finish(other)
    third = Request(102, 4, "tenant a", list(range(80, 86)), [other.blocks[0], 7])
    executor.admit(third)
    executor.iterate([one, other, third])
    return result(one, other, third)


def scene_device() -> Any:
    """Of one row, the table that attention reads isn't what the scheduler said."""
    executor, one, other = begun()

    def harm(table: Any) -> None:
        table[0, 1, 1, 1] = table[0, 0, 1, 2]

    executor.iterate([one, other], harm)
    executor.iterate([one, other])
    return result(one, other)


def scene_late() -> Any:
    """The table is right before the pass, and another one before it has ended."""
    executor, one, other = begun()

    def harm(table: Any) -> None:
        table[0, 0, 0, 1] = table[0, 1, 0, 0]

    executor.iterate([one, other], late_harm=harm)
    executor.iterate([one, other])
    return result(one, other)


def scene_odd_table() -> Any:
    """A version whose table is laid out in another way: the ledger goes on alone."""
    executor, (one, other) = Executor(), pair()
    for request in (one, other):
        executor.admit(request)

    def lay_out_otherwise(table: Any) -> None:
        table //= 2

    for _ in range(2):
        executor.iterate([one, other], lay_out_otherwise)
    return result(one, other) | {"off": executor.worker._table.is_off}


def scene_modules() -> Any:
    """What the guard brings into the process beside what torch brings."""
    if HAS_HOOK:
        import engines.trtllm.hook  # noqa: F401
    new = {name.partition(".")[0] for name in sys.modules} - PLAIN
    ours = [module.__file__ for name, module in sys.modules.items() if name.startswith("engines")]
    return {
        "new": sorted(new - set(sys.stdlib_module_names) - {"__mp_main__"}),
        "ours": sorted(map(str, ours)),
    }


def scene_speed() -> Any:
    """A step of 16 requests: only that it's no work of another order. ms."""
    executor = Executor()
    requests = [
        Request(100 + i, i, f"tenant {i}", list(range(8)), [2 * i, 2 * i + 1]) for i in range(8)
    ]
    for request in requests:
        executor.admit(request)
    executor.iterate(requests)
    started = time.perf_counter()
    executor.iterate(requests)
    return {"ms": 1000 * (time.perf_counter() - started)}


SCENES = vars(failing) | globals()


def played(folder: Path, name: str) -> Any:
    """The scene's result, from a child: scenes leave traces in the process."""
    ours = folder / name
    ours.mkdir(mode=0o700)
    read, write = os.pipe()
    if os.fork() == 0:
        os.environ[places.VARIABLES[0]] = str(ours)
        try:
            told = {"result": SCENES[f"scene_{name}"]()}
        except BaseException as error:
            logging.getLogger(name).exception("raised")
            told = {"raised": repr(error)}
        os.write(write, json.dumps(told).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        told = json.load(file)
    os.wait()
    return told


if __name__ == "__main__":
    folder, *names = sys.argv[1:]
    torch.set_num_threads(1)
    json.dump({name: played(Path(folder), name) for name in names}, sys.stdout)
