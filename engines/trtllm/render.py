"""What trtllm-serve is told, as the YAML file that it reads: each line that matters says why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engines.trtllm.manifest import has
from engines.trtllm.roles import Role, is_disaggregated
from engines.trtllm.settings import TrtSettings
from engines.trtllm.yaml_text import Key, Keys, plain, yaml_text

GUARD = {
    "connector_module": "engines.trtllm.guard",
    "connector_scheduler_class": "GuardScheduler",
    "connector_worker_class": "GuardWorker",
}
HOOK = "engines.trtllm.hook.GuardHook"
BACKENDS = {"nixl": "NIXL", "ucx": "UCX", "mpi": "MPI", "mooncake": "MOONCAKE"}
# `auto` for bf16: what a checkpoint says of FP8 can only be taken out of it (`bf16_view`).
DTYPES = {"auto": "auto", "bf16": "auto", "fp8": "fp8", "nvfp4": "nvfp4"}
NUM_EVENTS = 65536  # that wait for a front which asks every few seconds
WHAT = {
    "serve": "prompts and answers",
    "context": "prompts: hands their KV to generation servers",
    "generation": "answers: takes the prompts' KV from context servers",
}


class Unrenderable(Exception):
    """The settings contradict themselves. The message says where, and what to do."""


def serve_yaml(model: str, trt: TrtSettings, role: Role) -> str:
    """The whole file, byte for byte the same for the same settings. Raises Unrenderable."""
    head = (
        f"{model}: TensorRT-LLM {trt.version}, {WHAT[role.phase]}.\n"
        f"Written by `bulkhead trt render`. Change the model's [models.trt] and render it anew.\n"
        "The model is on the command line alone: releases differ in which of the two would win."
    )
    return yaml_text(serve_keys(trt, role), head)


def serve_settings(trt: TrtSettings, role: Role) -> dict[str, Any]:
    """What the file says, as TensorRT-LLM reads it. Raises Unrenderable."""
    found: dict[str, Any] = plain(serve_keys(trt, role))
    return found


def serve_keys(trt: TrtSettings, role: Role) -> Keys:
    """Its keys in order. Raises Unrenderable."""
    ours = (*_parallel(role), *_bounds(trt, role), *_cache(trt, role), *_scheduling(trt, role))
    ours = (*ours, *(_guard(trt) if trt.guard else ()), *_transfer(trt))
    return _with_extra(ours, trt.extra, "")


def _parallel(role: Role) -> Iterator[Key]:
    yield Key("tensor_parallel_size", role.tensor_parallel, "GPUs that share each layer.")
    yield Key(
        "pipeline_parallel_size", role.pipeline_parallel, "Groups of layers, one after another."
    )
    if role.expert_parallel > 1:
        yield Key("moe_expert_parallel_size", role.expert_parallel, "GPUs that share the experts.")


def _bounds(trt: TrtSettings, role: Role) -> Iterator[Key]:
    if role.max_batch_size:
        yield Key("max_batch_size", role.max_batch_size, "Requests that run at once.")
    if role.max_num_tokens:
        yield Key("max_num_tokens", role.max_num_tokens, "Tokens of one step.")
    if trt.max_seq_len:
        yield Key("max_seq_len", trt.max_seq_len, "Tokens of a prompt and its answer together.")


def _cache(trt: TrtSettings, role: Role) -> Iterator[Key]:
    inside = [
        Key("dtype", DTYPES[role.kv_dtype], _why_dtype(role)),
        Key("tokens_per_block", trt.tokens_per_block),
        Key("free_gpu_memory_fraction", role.memory_fraction, "Of what weights leave free."),
        Key("enable_block_reuse", trt.block_reuse, _why_reuse(trt)),
        Key("enable_partial_reuse", trt.partial_reuse, _why_partial(trt)),
        Key("host_cache_size", trt.host_cache_bytes, _why_host(trt)),
        Key("use_kv_cache_manager_v2", trt.kv_manager == "v2", _why_manager(trt)),
    ]
    if role.router == "kv_cache_aware":
        why = "The front routes by what is cached here, which it asks for at /kv_cache_events."
        inside.append(Key("event_buffer_max_size", NUM_EVENTS, why))
    yield Key("kv_cache_config", tuple(inside))


def _why_dtype(role: Role) -> str:
    return {
        "auto": "As the checkpoint's hf_quant_config.json says; else as the model computes.",
        "bf16": "As the model computes: the checkpoint that is served says nothing of the cache.",
        "fp8": "FP8 (e4m3, scale 1): half the memory of BF16, whatever the checkpoint says.",
        "nvfp4": "NVFP4: 4-bit numbers, and a scale for a few of them; needs Blackwell.",
    }[role.kv_dtype]


def _why_reuse(trt: TrtSettings) -> str:
    if not trt.block_reuse:
        return "No prompt finds what another one left, not even its own tenant's."
    return (
        "Cached prefixes are used again, within a salt: the gateway sends each tenant's own, and\n"
        "all as chats, since /v1/completions takes no salt."
    )


def _why_partial(trt: TrtSettings) -> str:
    if trt.partial_reuse:
        return "A block whose first tokens match is used again, too."
    return (
        "Off: a block that matches in part is taken over in place, with other content under the\n"
        "same id, which nobody who watches block ids can tell."
    )


def _why_host(trt: TrtSettings) -> str:
    if trt.host_cache_bytes:
        return "Bytes of host memory for blocks that the GPU has no room for."
    return (
        "None: a block that moves to host memory and back changes which memory its id means.\n"
        "Answers with tokens of other prompts came of it once (TensorRT-LLM #8813)."
    )


def _why_manager(trt: TrtSettings) -> str:
    if trt.kv_manager == "v2":
        return "The newer manager of blocks."
    return (
        "Said, since later releases choose V2 for some models: its block ids are slots that move."
    )


def _scheduling(trt: TrtSettings, role: Role) -> Iterator[Key]:
    policy = Key("capacity_scheduler_policy", "GUARANTEED_NO_EVICT", _why_policy(trt))
    yield Key("scheduler_config", (policy,))
    is_off = not trt.overlap_scheduler or role.phase == "context"
    yield Key("disable_overlap_scheduler", is_off, _why_no_overlap(trt, role) if is_off else "")
    why = "Prompts are computed in pieces." if trt.chunked_prefill else "Whole prompts."
    yield Key("enable_chunked_prefill", trt.chunked_prefill, why)
    if not trt.cuda_graphs:
        yield Key("cuda_graph_config", None, "Each step is launched kernel by kernel.")


def _why_policy(trt: TrtSettings) -> str:
    why = "A request begins only if all of its blocks can be had: none is paused and loses them."
    return why + (" Connectors run with no other." if trt.guard else "")


def _why_no_overlap(trt: TrtSettings, role: Role) -> str:
    if role.phase == "context" and trt.overlap_scheduler:
        return "Context servers don't run with it."
    return (
        "Steps one after another: where they overlapped, one could read block offsets that were\n"
        "being overwritten for the next (TensorRT-LLM #15546)."
    )


def _guard(trt: TrtSettings) -> Iterator[Key]:
    inside = tuple(Key(name, value) for name, value in GUARD.items())
    yield Key(
        "kv_connector_config",
        inside,
        "The guard: checks in every step that each request's blocks are its own. It only looks.\n"
        "Its modules lie in python/ beside this file, which PYTHONPATH has to name.",
    )
    if has(trt.version, "post_processor_hook"):
        yield Key("post_processor_hook", HOOK, "Ends the requests that the guard names.")


def _transfer(trt: TrtSettings) -> Iterator[Key]:
    if is_disaggregated(trt):
        backend = Key("backend", BACKENDS[trt.transfer])
        why = "How KV goes from context to generation servers. Neither encrypted nor authenticated."
        yield Key("cache_transceiver_config", (backend,), why)


def _with_extra(ours: Keys, extra: dict[str, Any], path: str) -> Keys:
    """The operator's further keys after ours, or within. Raises Unrenderable where both say."""
    rest, merged = dict(extra), []
    for key in ours:
        if key.name in rest:
            key = key._replace(value=_both(key, rest.pop(key.name), f"{path}{key.name}"))
        merged.append(key)
    why = "" if path else "From `extra`."
    return (*merged, *(Key(name, value, why) for name, value in sorted(rest.items())))


def _both(key: Key, theirs: Any, path: str) -> Any:
    if isinstance(key.value, tuple) and isinstance(theirs, dict):
        return _with_extra(key.value, theirs, f"{path}.")
    if plain(key.value) != theirs:
        raise Unrenderable(f"extra.{path} says {theirs!r}, the other settings {plain(key.value)!r}")
    return key.value
