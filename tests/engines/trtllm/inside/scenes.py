"""What the guard makes of what TensorRT-LLM does: each scene in a process of its own.

A script: `-m tests.engines.trtllm.inside.scenes FOLDER SCENE...` prints what came of each scene as
one JSON object. What a scene returns, `test_guard` judges.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from tests.engines.trtllm.inside.loop import (
    HAS_HOOK,
    PLAIN,
    Executor,
    Request,
    blindness,
    guard,
    journal,
    llm_args,
    places,
    stops,
)

REASON = "kv_integrity_abort"


def pair() -> tuple[Request, Request]:
    """Two requests of two tenants, each with blocks of its own."""
    return (
        Request(100, 2, "tenant a", list(range(9)), [0, 1, 2]),
        Request(101, 3, "tenant b", list(range(50, 56)), [3, 4]),
    )


def begun() -> tuple[Executor, Request, Request]:
    """Both have had their first token."""
    executor, (one, other) = Executor(), pair()
    for request in (one, other):
        executor.admit(request)
    executor.iterate([one, other])
    return executor, one, other


def result(*requests: Request) -> dict[str, Any]:
    folder = places.guard_folder()
    state = journal.read_state(folder)
    found = stops.Stops.open(folder)
    assert state is not None
    return {
        "steps": state.steps,
        "checked": state.checked,
        "violations": state.violations,
        "poisoned": state.is_poisoned,
        "journal": journal.Journal.follow(folder).new_lines(),
        "stopped": [c for c in range(20) if found is not None and found.must_stop(c)],
        "outputs": [request.output for request in requests],
    }


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


def scene_unnamed() -> Any:
    """The same, where the request doesn't say by which id the server knows it."""
    executor, one, other = begun()
    thief = Request(102, None, "tenant b", list(range(9)), [0, 6, 7], matched=4)
    executor.admit(thief)
    executor.iterate([one, other])
    return result(one, other)


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


def scene_broken() -> Any:
    """Whatever a callback is handed that nobody foresaw."""
    executor, one, other = begun()
    assert executor.scheduler.get_num_new_matched_tokens(None, None) == (0, False)
    assert executor.scheduler.update_state_after_alloc(None, None) is None
    assert executor.scheduler.request_finished(None, None) is False
    assert executor.scheduler.build_connector_meta(None) == ()
    executor.worker.bind_connector_meta(3)
    assert executor.worker.start_load_kv(None) is None
    assert executor.worker.register_kv_caches(None) is None
    executor.iterate([one, other])
    return result(one, other)


def scene_full() -> Any:
    """No room for the journal's line: as a file system that is full."""
    executor, one, other = begun()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    thief = Request(102, 4, "tenant b", list(range(9)), [0, 6, 7], matched=4)
    executor.admit(thief)
    executor.iterate([one, other, thief])
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    return result(one, other, thief)


def scene_many() -> Any:
    """More requests than the set of stops has places."""
    executor, one, other = begun()
    for client in range(1000, 1000 + stops.CAPACITY):
        executor.scheduler._watch._stops.add(client)
    thief = Request(102, 4, "tenant b", list(range(9)), [0, 6, 7], matched=4)
    executor.admit(thief)
    executor.iterate([one, other, thief])
    return result(one, other, thief)


def scene_blinded() -> Any:
    """Settings that the guard can't work with are refused before anything runs."""
    wrong: dict[str, Any] = {
        "enable_partial_reuse": True,
        "host_cache_size": 1 << 30,
        "use_kv_cache_manager_v2": "auto",
        "max_attention_window": [4096],
        "disable_overlap_scheduler": False,
        "enable_chunked_prefill": True,
        "enable_attention_dp": True,
        "speculative_config": object(),
        "cache_transceiver_config": SimpleNamespace(backend="NIXL"),
        "pipeline_parallel_size": 2,
        "max_beam_width": 4,
        "scheduler_config": SimpleNamespace(capacity_scheduler_policy="MAX_UTILIZATION"),
    }
    said = {}
    for name, value in wrong.items():
        try:
            guard.GuardScheduler(llm_args(**{name: value}))
        except blindness.Blinded as error:
            said[name] = str(error)
    no_reuse = llm_args(enable_block_reuse=False, enable_partial_reuse=True)
    guard.GuardScheduler(no_reuse)
    return {"wrong": sorted(wrong), "said": said}


def scene_no_folder() -> Any:
    """Nobody set it: the server doesn't start, and a hook lets nothing pass."""
    for variable in places.VARIABLES:
        os.environ.pop(variable, None)
    try:
        guard.GuardScheduler(llm_args())
    except places.NoFolder as error:
        said = str(error)
    if not HAS_HOOK:
        return {"said": said, "action": "terminate"}
    from engines.trtllm.hook import GuardHook

    piece = SimpleNamespace(request_id=1, text_diff="x", token_ids_diff=[1])
    return {"said": said, "action": GuardHook()(piece).action}


def scene_odd_piece() -> Any:
    """A hook that is handed what it doesn't know stops it, and raises nothing."""
    executor, one, other = begun()
    if not HAS_HOOK:
        return {"action": "terminate", "reason": REASON, "poisoned": True}
    verdict = executor.hook(SimpleNamespace(request_id="?", text_diff="x", token_ids_diff=[1]))
    told = result(one, other)
    return {"action": verdict.action, "reason": verdict.reason, "poisoned": told["poisoned"]}


def scene_other_rank() -> Any:
    """A worker without a scheduler in its process: it has the folder, and no ledger."""
    executor, one, other = begun()
    guard._Here.watch = None
    executor.worker.wait_for_save(None)
    sound = result(one, other)["poisoned"]
    executor.worker.start_load_kv(None)
    executor.worker._table.start(((100, True, (0, 1, 2)),))
    executor.metadata.request_ids = [100]
    executor.metadata.host_table[0, 0, 0, 2] += 1
    executor.metadata.prepare()
    executor.worker.wait_for_save(None)
    return {"before": sound, "after": result(one, other)["poisoned"]}


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


def played(folder: Path, name: str) -> Any:
    """The scene's result, from a child: scenes leave traces in the process."""
    ours = folder / name
    ours.mkdir(mode=0o700)
    read, write = os.pipe()
    if os.fork() == 0:
        os.environ[places.VARIABLES[0]] = str(ours)
        try:
            told = {"result": globals()[f"scene_{name}"]()}
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
