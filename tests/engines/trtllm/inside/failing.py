"""What becomes of the requests where the guard itself can't do its work."""

from __future__ import annotations

import os
import random
import resource
from types import SimpleNamespace
from typing import Any

import torch

from tests.engines.trtllm.inside.loop import (
    HAS_HOOK,
    Request,
    begun,
    blindness,
    guard,
    llm_args,
    places,
    result,
    stops,
)

REASON = "kv_integrity_abort"


def scene_unnamed() -> Any:
    """The same, where the request doesn't say by which id the server knows it."""
    executor, one, other = begun()
    thief = Request(102, None, "tenant b", list(range(9)), [0, 6, 7], matched=4)
    executor.admit(thief)
    executor.iterate([one, other])
    return result(one, other)


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


def scene_broken_worker() -> Any:
    """The same of the worker's half alone."""
    executor, one, other = begun()
    executor.worker.bind_connector_meta(3)
    assert executor.worker.start_load_kv(None) is None
    executor.iterate([one, other])
    return result(one, other)


def scene_garbage() -> Any:
    """Every callback, with whatever there is: each returns what an observer returns."""
    executor, one, other = begun()
    chance = random.Random(7)
    output = SimpleNamespace(new_requests=[one], cached_requests=[None])
    garbage = [
        None,
        3,
        -1,
        2**70,
        "x",
        [],
        [None],
        {},
        object(),
        output,
        one,
        torch.ones(2),
        [2**70],
    ]
    scheduler, worker = executor.scheduler, executor.worker
    answers: list[tuple[Any, int, Any]] = [
        (scheduler.get_num_new_matched_tokens, 2, (0, False)),
        (scheduler.update_state_after_alloc, 2, None),
        (scheduler.build_connector_meta, 1, ()),
        (scheduler.request_finished, 2, False),
        (scheduler.request_reset, 1, None),
        (worker.register_kv_caches, 1, None),
        (worker.bind_connector_meta, 1, None),
        (worker.start_load_kv, 1, None),
        (worker.wait_for_save, 1, None),
        (worker.get_finished, 2, ([], [])),
        (worker._prepared, 1, None),
        (executor.passed, 0, None),
    ]
    for _ in range(100):
        for callback, num, answer in answers:
            said = callback(*(chance.choice(garbage) for _ in range(num)))
            assert said == answer, (callback, said)
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
