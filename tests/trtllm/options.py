"""trtllm-serve's command line and YAML file: what it knows, and its refusal of all else.

Names are of TensorRT-LLM 1.2 and early 1.3, as far as they are public.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

KV_CACHE = frozenset(
    {
        *("enable_block_reuse", "max_tokens", "max_attention_window", "sink_token_length"),
        *(
            "free_gpu_memory_fraction",
            "host_cache_size",
            "onboard_blocks",
            "cross_kv_cache_fraction",
        ),
        *("secondary_offload_min_priority", "event_buffer_max_size", "enable_partial_reuse"),
        *("copy_on_partial_reuse", "attention_dp_events_gather_period_ms", "use_uvm", "dtype"),
        *("max_gpu_total_bytes", "mamba_ssm_cache_dtype", "tokens_per_block"),
        *("use_kv_cache_manager_v2", "max_util_for_resume"),
    }
)
NESTED: Mapping[str, frozenset[str]] = {
    "kv_cache_config": KV_CACHE,
    "kv_connector_config": frozenset(
        {"connector_module", "connector_scheduler_class", "connector_worker_class"}
    ),
    "scheduler_config": frozenset(
        {"capacity_scheduler_policy", "context_chunking_policy", "dynamic_batch_config"}
    ),
    "cuda_graph_config": frozenset({"batch_sizes", "max_batch_size", "enable_padding"}),
    "cache_transceiver_config": frozenset(
        {
            *("backend", "max_tokens_in_buffer", "kv_transfer_timeout_ms", "transceiver_runtime"),
            "kv_transfer_sender_future_timeout_ms",
        }
    ),
}
KNOWN = frozenset(NESTED) | {
    *("model", "tokenizer", "tokenizer_mode", "skip_tokenizer_init", "trust_remote_code"),
    *("dtype", "revision", "tokenizer_revision", "tensor_parallel_size", "pipeline_parallel_size"),
    *("context_parallel_size", "moe_tensor_parallel_size", "moe_expert_parallel_size"),
    *("moe_cluster_parallel_size", "gpus_per_node", "enable_attention_dp", "attention_dp_config"),
    *("cp_config", "enable_lora", "lora_config", "guided_decoding_backend", "speculative_config"),
    *("max_batch_size", "max_input_len", "max_seq_len", "max_beam_width", "max_num_tokens"),
    *("load_format", "enable_chunked_prefill", "stream_interval", "peft_cache_config"),
    *("iter_stats_max_iterations", "request_stats_max_iterations", "batching_type"),
    *("normalize_log_probs", "gather_generation_logits", "num_postprocess_workers"),
    *("postprocess_tokenizer_dir", "reasoning_parser", "garbage_collection_gen0_threshold"),
    *("backend", "build_config", "checkpoint_format", "disable_overlap_scheduler", "moe_config"),
    *("attn_backend", "sampler_type", "kv_cache_dtype", "enable_iter_perf_stats"),
    *("enable_iter_req_stats", "print_iter_log", "torch_compile_config", "enable_autotuner"),
    *("enable_layerwise_nvtx_marker", "enable_min_latency", "force_dynamic_quantization"),
    *("allreduce_strategy", "fail_fast_on_attention_window_too_large", "return_perf_metrics"),
    *("perf_metrics_max_requests", "orchestrator_type", "env_overrides", "batch_wait_timeout_ms"),
    *("batch_wait_timeout_iters", "batch_wait_max_tokens_ratio", "nvfp4_gemm_config"),
}
HOOK = "post_processor_hook"  # from 1.3 on
FLAGS = (
    *("--tokenizer", "--backend", "--custom_module_dirs", "--log_level", "--revision"),
    *("--reasoning_parser", "--tool_parser", "--metadata_server_config_file", "--server_role"),
    *("--otlp_traces_endpoint", "--disagg_cluster_uri", "--media_io_kwargs", "--chat_template"),
)
NUMBERS = {
    "--max_beam_width": (), "--max_batch_size": (), "--max_num_tokens": (), "--max_seq_len": (),
    "--tensor_parallel_size": ("--tp_size",), "--pipeline_parallel_size": ("--pp_size",),
    "--context_parallel_size": ("--cp_size",), "--gpus_per_node": (),
    "--moe_expert_parallel_size": ("--ep_size",),
    "--moe_cluster_parallel_size": ("--cluster_size",),
    "--kv_cache_free_gpu_memory_fraction": ("--free_gpu_memory_fraction",),
    "--num_postprocess_workers": (),
}  # fmt: skip
SWITCHES = (
    *("--trust_remote_code", "--enable_chunked_prefill"),
    "--fail_fast_on_attention_window_too_large",
)


class Options(NamedTuple):
    """What the fake makes of command line and file."""

    model: str
    host: str
    port: int
    tokens_per_block: int
    num_blocks: int
    max_batch_size: int
    max_num_tokens: int
    max_seq_len: int
    is_reusing: bool
    reuses_parts: bool
    has_perf_metrics: bool
    settings: Mapping[str, Any]  # the file's


class BadConfig(Exception):
    """As pydantic words it."""


def read_options(arguments: Sequence[str], version: str) -> Options:
    """Of a command line without the program's name. Raises BadConfig; argparse exits by itself."""
    found = _parser().parse_args(list(arguments))
    settings = _read_yaml(found.config, version) if found.config else {}
    kv = settings.get("kv_cache_config") or {}
    per_block = int(kv.get("tokens_per_block", 32))

    def number(name: str, default: int) -> int:
        """The file's, else the command line's: the file overrides it."""
        return int(settings.get(name) or getattr(found, name) or default)

    return Options(
        model=found.model,
        host=found.host,
        port=found.port,
        tokens_per_block=per_block,
        num_blocks=int(kv.get("max_tokens") or 4096 * per_block) // per_block,
        max_batch_size=number("max_batch_size", 2048),
        max_num_tokens=number("max_num_tokens", 8192),
        max_seq_len=number("max_seq_len", 8192),
        is_reusing=bool(kv.get("enable_block_reuse", True)),
        reuses_parts=bool(kv.get("enable_partial_reuse", True)),
        has_perf_metrics=bool(settings.get("return_perf_metrics")),
        settings=settings,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("trtllm-serve", allow_abbrev=False)
    parser.add_argument("model", nargs="?", default="fake-model")
    parser.add_argument("--host", default="localhost")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--config", "--extra_llm_api_options", type=Path)
    for flag in FLAGS:
        parser.add_argument(flag)
    for flag, others in NUMBERS.items():
        parser.add_argument(flag, *others, type=float)
    for flag in SWITCHES:
        parser.add_argument(flag, action="store_true")
    return parser


def _read_yaml(path: Path, version: str) -> dict[str, Any]:
    found = yaml.safe_load(path.read_text()) or {}
    known = KNOWN | {HOOK} if not version.startswith(("1.0", "1.1", "1.2")) else KNOWN
    faults = [key for key in found if key not in known]
    for name, keys in NESTED.items():
        faults += [f"{name}.{key}" for key in found.get(name) or () if key not in keys]
    if faults:
        told = "".join(f"\n{key}\n  Extra inputs are not permitted" for key in faults)
        raise BadConfig(f"{len(faults)} validation errors for TorchLlmArgs{told}")
    return dict(found)
