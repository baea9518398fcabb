"""What of TensorRT-LLM's own settings would blind the guard, read from the server as it starts.

The gateway's check and the rendered file say the same before; this is for a server that was started
otherwise, and for defaults that a version has changed. A setting that a version doesn't have blinds
nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

NO_EVICT = "GUARANTEED_NO_EVICT"


class Blinded(Exception):
    """The guard would not see what it must. The message names each setting."""


def blinders(llm_args: Any) -> Iterator[str]:
    """Each setting that is wrong, with what it must be."""
    yield from _of_the_cache(llm_args.kv_cache_config)
    yield from _of_the_schedule(llm_args)
    for setting in ("pipeline_parallel_size", "context_parallel_size", "max_beam_width"):
        if (getattr(llm_args, setting, None) or 1) > 1:
            yield f"{setting} must be 1"


def _of_the_cache(cache: Any) -> Iterator[str]:
    for tier in ("host_cache_size", "disk_cache_size"):
        if getattr(cache, tier, None):
            yield f"kv_cache_config.{tier} must be 0: a block that comes back is another one"
    if cache.enable_block_reuse and cache.enable_partial_reuse:
        yield ("kv_cache_config.enable_partial_reuse must be false: such a block changes in place")
    if getattr(cache, "use_kv_cache_manager_v2", False) is not False:
        yield "kv_cache_config.use_kv_cache_manager_v2 must be false: its ids are other things"
    if getattr(cache, "max_attention_window", None):
        yield "kv_cache_config.max_attention_window must be unset: blocks leave a list unseen"


def _of_the_schedule(llm_args: Any) -> Iterator[str]:
    if not llm_args.disable_overlap_scheduler:
        yield "disable_overlap_scheduler must be true: else what is told is a step behind"
    if getattr(llm_args, "enable_chunked_prefill", False):
        yield "enable_chunked_prefill must be false"
    if getattr(llm_args, "enable_attention_dp", False):
        yield "enable_attention_dp must be false: each rank would have requests of its own"
    if getattr(llm_args, "speculative_config", None) is not None:
        yield "speculative_config must be unset: blocks are taken back unseen"
    transceiver = getattr(llm_args, "cache_transceiver_config", None)
    if getattr(transceiver, "backend", None) is not None:
        yield "cache_transceiver_config must be unset: blocks are written from outside"
    policy = getattr(getattr(llm_args, "scheduler_config", None), "capacity_scheduler_policy", None)
    if policy is not None and NO_EVICT not in f"{policy} {getattr(policy, 'name', '')}":
        yield f"scheduler_config.capacity_scheduler_policy must be {NO_EVICT}"
