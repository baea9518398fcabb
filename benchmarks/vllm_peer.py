"""vLLM on the CPU in one process, by vLLM's own Python: two tenants' requests, and a fault or none.

Reads one line of JSON from stdin, {"model": folder, "page_size": tokens, "plugin": bool}, and says
READY; then a line for each run, a `Run` as JSON, answered with `RESULT ` and what both were told.
A fault is what a bug in the allocator would do, between two steps, past vLLM's own asserts.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

READY, RESULT = "READY", "RESULT "
SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # schedule and compute here, step by step
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "",  # none that happens to be installed
    "HF_HUB_OFFLINE": "1",
}


@dataclass(frozen=True, slots=True)
class Run:
    """A's request begins, if there is one; then the fault; then B's comes. Token ids."""

    a: list[int]
    b: list[int]
    max_tokens: int
    fault: str  # "", "stale-page" or "salt-lost"


def main() -> None:
    settings = json.loads(sys.stdin.readline())
    if settings["plugin"]:
        import bulkhead_vllm_tags  # put on its path

        bulkhead_vllm_tags.register()
    engine = load(settings["model"], settings["page_size"])
    print(READY, flush=True)
    for line in sys.stdin:
        print(f"{RESULT}{json.dumps(told(engine, Run(**json.loads(line))))}", flush=True)


def load(model: str, page_size: int) -> Any:
    """vLLM's engine, not compiled, which adds minutes and changes no answer's meaning."""
    os.environ.update(SETTINGS)
    from vllm import LLM  # only this Python has it

    llm = LLM(
        model=model,
        enforce_eager=True,
        max_model_len=2048,
        block_size=page_size,
        enable_prefix_caching=True,
    )
    return llm.llm_engine


def told(engine: Any, run: Run) -> dict[str, Any]:
    """By tenant: the tokens, how it ended, and how many of its prompt's tokens were cached."""
    answers: dict[str, Any] = {}
    with _without_salts() if run.fault == "salt-lost" else nullcontext():
        if run.a:
            _add(engine, "a", run.a, run.max_tokens)
            _step(engine, answers)
        if run.fault == "stale-page":
            _free_held_page(engine)
        _add(engine, "b", run.b, run.max_tokens)
        while engine.has_unfinished_requests():
            _step(engine, answers)
    engine.reset_prefix_cache()
    return answers


def _add(engine: Any, name: str, prompt: list[int], max_tokens: int) -> None:
    from vllm import SamplingParams

    salted = {"prompt_token_ids": prompt, "cache_salt": f"tenant-{name}"}
    engine.add_request(name, salted, SamplingParams(temperature=0, max_tokens=max_tokens))


def _step(engine: Any, answers: dict[str, Any]) -> None:
    for output in engine.step():
        (one,) = output.outputs
        answers[output.request_id[0]] = {
            "tokens": list(one.token_ids),
            "end": one.finish_reason,
            "cached": output.num_cached_tokens or 0,
        }


def _free_held_page(engine: Any) -> None:
    """The first page of the request that runs is free, and the request's table still names it."""
    manager = engine.engine_core.engine_core.scheduler.kv_cache_manager
    (tables,) = manager.coordinator.single_type_managers
    ((page, *_),) = tables.req_to_blocks.values()
    manager.block_pool.evict_blocks({page.block_id})
    manager.block_pool.free_blocks([page])


@contextmanager
def _without_salts() -> Iterator[None]:
    """Content keys name no salt."""
    from vllm.v1.core import kv_cache_utils as keys

    with_salts = keys.generate_block_hash_extra_keys
    keys.generate_block_hash_extra_keys = lambda request, start, end, place: (None, place)
    try:
        yield
    finally:
        keys.generate_block_hash_extra_keys = with_salts


if __name__ == "__main__":
    main()
