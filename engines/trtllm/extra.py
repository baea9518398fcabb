"""`extra`: keys that are handed on into the serve YAML, unless they contradict what is said. Pure.

What a setting says is said there. What would blind the guard is refused with it; what would show
one tenant's prefix to another is refused where tenants are to be kept apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from engines.trtllm.settings import Found

Faults = Iterator[tuple[str, str]]

SAID = "is said by `{}`; leave it out here"
# Keys of the serve YAML, and the setting that each is rendered from.
SETTINGS = {
    "model": "path",
    "tensor_parallel_size": "trt.tensor_parallel",
    "pipeline_parallel_size": "trt.pipeline_parallel",
    "moe_expert_parallel_size": "trt.expert_parallel",
    "max_batch_size": "trt.max_batch_size",
    "max_num_tokens": "trt.max_num_tokens",
    "max_seq_len": "trt.max_seq_len",
    "disable_overlap_scheduler": "trt.overlap_scheduler",
    "enable_chunked_prefill": "trt.chunked_prefill",
    "cache_transceiver_config.backend": "trt.transfer",
    "kv_cache_config.dtype": "trt.kv_dtype",
    "kv_cache_config.tokens_per_block": "trt.tokens_per_block",
    "kv_cache_config.enable_block_reuse": "trt.block_reuse",
    "kv_cache_config.enable_partial_reuse": "trt.partial_reuse",
    "kv_cache_config.copy_on_partial_reuse": "trt.partial_reuse",
    "kv_cache_config.free_gpu_memory_fraction": "trt.memory_fraction",
    "kv_cache_config.host_cache_size": "trt.host_cache_bytes",
    "kv_cache_config.use_kv_cache_manager_v2": "trt.kv_manager",
}
# What each may say at most, whoever watches, and why.
NEVER: dict[str, tuple[object, str]] = {
    "skip_tokenizer_init": (False, "prompts reach it as text"),
    "max_beam_width": (1, "a request has one answer here, and beams share blocks between answers"),
    "backend": ("pytorch", "no other has what is rendered here"),
    "scheduler_config.capacity_scheduler_policy": (
        "GUARANTEED_NO_EVICT",
        "with another, requests are paused and lose their blocks; nor is a guard taken beside one",
    ),
}
# With the guard: what each key may say (None: nothing), and what goes unseen beside it.
UNSEEN: dict[str, tuple[object, str]] = {
    "speculative_config": (None, "guesses are taken back, and their blocks replaced in place"),
    "context_parallel_size": (1, "TensorRT-LLM takes no connector, which it is, beside this"),
    "cp_config": (None, "TensorRT-LLM takes no connector, which it is, beside this"),
    "enable_attention_dp": (False, "each rank then has blocks of its own, and the guard is on one"),
    "sparse_attention_config": (None, "blocks are then left out of tables in place"),
    "post_processor_hook": (None, "the guard's own hook ends requests, and there can be only one"),
    "kv_cache_config.max_attention_window": (None, "blocks are then replaced in place"),
    "kv_cache_config.sink_token_length": (None, "blocks are then replaced in place"),
    "kv_cache_config.disk_cache_size": (None, "blocks that went to a disk come back elsewhere"),
    "kv_cache_config.disk_cache_path": (None, "blocks that went to a disk come back elsewhere"),
    "kv_cache_config.secondary_offload_min_priority": (None, "it is about blocks on the host"),
    "kv_cache_config.enable_kv_pool_rebalance": (False, "pools are then moved while they run"),
}
CONNECTOR = "kv_connector_config"
# What has keys of its own; the rest of each is rendered beside what `extra` says.
TABLES = sorted({key.partition(".")[0] for key in (*SETTINGS, *NEVER, *UNSEEN) if "." in key})


def faults(trt: Found, cache: str | None) -> Faults:
    """Everything in `extra` that contradicts the rest, as (key, reason)."""
    if trt.extra is None:
        return
    found = dict(_leaves(trt.extra))
    for key, value in found.items():
        if key in SETTINGS:
            yield f"trt.extra.{key}", SAID.format(SETTINGS[key])
        elif key in NEVER and not _is(value, NEVER[key][0]):
            yield f"trt.extra.{key}", f"{NEVER[key][1]}; leave it out"
    if trt.cuda_graphs is False and "cuda_graph_config" in trt.extra:
        yield "trt.extra.cuda_graph_config", SAID.format("trt.cuda_graphs")
    yield from _shape_faults(trt.extra)
    yield from _connector_faults(trt, cache)
    if trt.guard is True:
        yield from _unseen(found, trt.extra)


def _shape_faults(extra: Mapping[str, Any]) -> Faults:
    for key in TABLES:
        if not isinstance(extra.get(key, {}), dict):
            yield f"trt.extra.{key}", "expected a table"


def _connector_faults(trt: Found, cache: str | None) -> Faults:
    if CONNECTOR not in trt.extra:
        return
    if trt.guard is True:
        yield f"trt.extra.{CONNECTOR}", "the guard is the connector, and there can be only one"
    elif cache is not None and cache != "shared-accepted":
        yield (
            f"trt.extra.{CONNECTOR}",
            "a connector's store may know no salts (LMCache's and kvbm's don't): one tenant would "
            'be given another\'s prefixes; say `cache = "shared-accepted"` if that may be',
        )


def _unseen(found: Mapping[str, Any], extra: Mapping[str, Any]) -> Faults:
    for key, (allowed, reason) in UNSEEN.items():
        said = [name for name in found if name == key or name.startswith(f"{key}.")]
        if said and not (said == [key] and _is(found[key], allowed)):
            yield (
                f"trt.extra.{key}",
                f"blinds the guard: {reason}; leave it out, or say `guard = false`",
            )


def _is(value: object, allowed: object) -> bool:
    return value is None or (type(value) is type(allowed) and value == allowed)


def _leaves(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Every value by its path, `kv_cache_config.dtype`. An empty table is a value."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{before}{key}.")
        else:
            yield before + key, value
