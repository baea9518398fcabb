"""The config's `[models.trt]`: how TensorRT-LLM serves a model. Types only; `checks` has the rules.

0 and "" mean "nothing said": TensorRT-LLM's own default, or the model's.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from engines.setting_kinds import Json, OptionalSecret

ENGINE = "tensorrt-llm"  # of `[[models]] engine`
KIND: Literal["trtllm"] = "trtllm"  # of attached server that the gateway sees in it
URL = "http://127.0.0.1:8000/v1"  # where `trtllm-serve` answers unless something else is said

Gpu = Literal["ampere", "ada", "hopper", "blackwell"]
KvDtype = Literal["auto", "bf16", "fp8", "nvfp4"]
OwnKvDtype = Literal["", "auto", "bf16", "fp8", "nvfp4"]
Router = Literal["", "round_robin", "load_balancing", "kv_cache_aware"]
Transfer = Literal["nixl", "ucx", "mpi", "mooncake"]
Ranks = Annotated[int, Meta(ge=1, le=4096)]
OwnRanks = Annotated[int, Meta(ge=0, le=4096)]
Size = Annotated[int, Meta(ge=0, le=1 << 40)]
BlockSize = Annotated[int, Meta(ge=1, le=4096)]
Fraction = Annotated[float, Meta(gt=0, le=1)]
OwnFraction = Annotated[float, Meta(ge=0, le=1)]


class TrtServers(Struct, frozen=True, kw_only=True):
    """The servers of one phase, where prompts are computed apart from answers (disaggregated)."""

    urls: tuple[str, ...] = ()  # host:port of each, as the front reaches it; (): no such servers
    path: str = ""  # their checkpoint; "": the model's
    kv_dtype: OwnKvDtype = ""
    tensor_parallel: OwnRanks = 0
    pipeline_parallel: OwnRanks = 0
    expert_parallel: OwnRanks = 0
    memory_fraction: OwnFraction = 0.0
    max_batch_size: Size = 0
    max_num_tokens: Size = 0
    router: Router = ""  # how the front chooses among them


class TrtSettings(Struct, frozen=True, kw_only=True):
    """How TensorRT-LLM serves a model. Sizes are in tokens, but for `host_cache_bytes`."""

    version: str = "1.2.1"  # the release that serves
    gpu: Gpu = "hopper"
    kv_dtype: KvDtype = "auto"  # auto: as the checkpoint says
    tokens_per_block: BlockSize = 32
    tensor_parallel: Ranks = 1
    pipeline_parallel: Ranks = 1
    expert_parallel: Ranks = 1
    memory_fraction: Fraction = 0.9  # for KV, of what is free once the weights are loaded
    max_batch_size: Size = 0
    max_num_tokens: Size = 0
    max_seq_len: Size = 0
    block_reuse: bool = True  # of cached prefixes, within a salt
    partial_reuse: bool = False  # of a block's first tokens
    host_cache_bytes: Size = 0  # blocks moved to host memory
    kv_manager: Literal["v1", "v2"] = "v1"
    overlap_scheduler: bool = False
    cuda_graphs: bool = True
    chunked_prefill: bool = False
    guard: bool = True  # watches from within that no request reads another domain's blocks
    guard_url: str = ""  # where the launcher tells what the guard saw
    guard_secret: OptionalSecret = ""  # the secret that the gateway shows there
    python: str = ""  # the Python of TensorRT-LLM's own venv, for `bulkhead trt launch`
    image: str = ""  # or a container image; neither: it is only attached
    transfer: Transfer = "nixl"  # of KV from context to generation servers
    context: TrtServers = TrtServers()  # both, or neither
    generation: TrtServers = TrtServers()
    extra: Json = {}  # further keys of the serve YAML


# What the rules see: a TrtSettings in which None stands for each value that had a fault.
Found = Any
