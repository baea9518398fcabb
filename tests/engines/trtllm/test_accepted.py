"""No setting that the check takes contradicts the guard: what is rendered of it is looked at."""

from __future__ import annotations

from typing import Any

from hypothesis import event, given, settings as limited, strategies as st
from msgspec import convert, to_builtins

from engines.trtllm.checks import faults
from engines.trtllm.render import serve_settings
from engines.trtllm.roles import roles
from engines.trtllm.settings import TrtSettings
from engines.trtllm.versions import FLOOR, parsed
from tests.stack import SOAK

DEFAULTS = to_builtins(TrtSettings())
VALUES: dict[str, list[Any]] = {
    "version": ["1.2.0", "1.2.1", "1.3.0rc5", "1.3.0rc22", "1.4.0rc1"],
    "gpu": ["ampere", "hopper", "blackwell"],
    "kv_dtype": ["auto", "bf16", "fp8", "nvfp4"],
    "tokens_per_block": [16, 24, 32, 64],
    "tensor_parallel": [1, 2, 8],
    "pipeline_parallel": [1, 2],
    "expert_parallel": [1, 2],
    "max_batch_size": [0, 64],
    "max_num_tokens": [0, 32, 8192],
    "max_seq_len": [0, 8192],
    "block_reuse": [True, False],
    "partial_reuse": [False, True],
    "host_cache_bytes": [0, 1 << 30],
    "kv_manager": ["v1", "v2"],
    "overlap_scheduler": [False, True],
    "cuda_graphs": [True, False],
    "chunked_prefill": [False, True],
    "guard": [True, True, False],
    "guard_url": ["http://127.0.0.1:9000", ""],
    "context": [{}, {"urls": ["a:1"]}, {"urls": ["a:1"], "router": "kv_cache_aware"}],
    "generation": [{}, {"urls": ["b:1"]}],
}
# As an operator may write them into `extra`, whole tables and single keys.
EXTRA: dict[str, list[Any]] = {
    "speculative_config": [{}, {"decoding_type": "MTP"}],
    "max_beam_width": [1, 4],
    "context_parallel_size": [1, 2],
    "enable_attention_dp": [False, True],
    "disable_overlap_scheduler": [True, False],
    "enable_chunked_prefill": [True],
    "pipeline_parallel_size": [1, 2],
    "kv_connector_config": [{}, {"connector": "kvbm"}],
    "post_processor_hook": ["mine.Hook"],
    "scheduler_config": [
        {"capacity_scheduler_policy": "MAX_UTILIZATION"},
        {"capacity_scheduler_policy": "GUARANTEED_NO_EVICT"},
        {"context_chunking_policy": "FIRST_COME_FIRST_SERVED"},
        "x",
    ],
    "kv_cache_config": [
        {"max_tokens": 4096},
        {"host_cache_size": 1},
        {"max_attention_window": [1024]},
        {"enable_partial_reuse": True, "max_tokens": 1},
        {"use_kv_cache_manager_v2": True},
        {"event_buffer_max_size": 1},
        {"disk_cache_size": 1},
        {"dtype": "fp8"},
        [],
    ],
    "cache_transceiver_config": [{"backend": "UCX"}, {"kv_transfer_timeout_ms": 1000}],
    "cuda_graph_config": [{"max_batch_size": 8}],
    "stream_interval": [2],
}


def few(values: dict[str, list[Any]], most: int) -> st.SearchStrategy[dict[str, Any]]:
    """Some of these keys, each with one of its values."""
    names = st.lists(st.sampled_from(sorted(values)), max_size=most, unique=True)
    return names.flatmap(
        lambda found: st.fixed_dictionaries({name: st.sampled_from(values[name]) for name in found})
    )


@given(few(VALUES, 5), few(EXTRA, 2), st.sampled_from(["", "salted", "off", "shared-accepted"]))
@limited(max_examples=20000 if SOAK else 600, deadline=None)
def test_what_is_taken_can_be_rendered_and_watched(
    changed: dict[str, Any], extra: dict[str, Any], cache: str
) -> None:
    """With the guard, it is the configuration that the guard was written for."""
    told = DEFAULTS | {"guard_url": "http://127.0.0.1:9000"} | changed | {"extra": extra}
    if not told["guard"]:
        told["guard_url"] = ""
    trt = convert(told, TrtSettings)
    if list(faults({"trt": trt, "cache": cache})):
        event("refused")
        return
    event("taken, guarded" if trt.guard else "taken")
    assert parsed(trt.version) >= FLOOR
    for role in roles("/model", trt):
        rendered = serve_settings(trt, role)  # raises where two say unequal things
        if trt.guard:
            assert cache in ("", "salted")
            assert trt.guard_url or "post_processor_hook" in rendered
            assert_watched(rendered)


def assert_watched(said: dict[str, Any]) -> None:
    """What the guard relies on, said so that no release's default counts."""
    cache = said["kv_cache_config"]
    assert cache["use_kv_cache_manager_v2"] is False
    assert cache["host_cache_size"] == 0
    assert cache["enable_partial_reuse"] is False
    assert not cache.keys() & {"max_attention_window", "disk_cache_size", "sink_token_length"}
    assert said["scheduler_config"]["capacity_scheduler_policy"] == "GUARANTEED_NO_EVICT"
    assert said["disable_overlap_scheduler"] is True
    assert said["enable_chunked_prefill"] is False
    assert said["pipeline_parallel_size"] == 1
    assert said.get("context_parallel_size", 1) == 1
    assert said.get("enable_attention_dp", False) is False
    assert said.get("max_beam_width", 1) == 1
    assert not said.get("speculative_config")
    assert said["kv_connector_config"]["connector_module"] == "engines.trtllm.guard"
    assert said["kv_connector_config"].keys() == {
        "connector_module",
        "connector_scheduler_class",
        "connector_worker_class",
    }
    assert said.get("post_processor_hook", "engines.trtllm.hook.GuardHook").endswith("GuardHook")
    assert (
        "cache_transceiver_config" not in said or "backend" not in said["cache_transceiver_config"]
    )
