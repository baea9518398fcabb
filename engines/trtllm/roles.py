"""The servers of a model: one kind that does all, or those of prompts and those of answers.

What a phase leaves out is as the model says. Of settings that were checked: `phases` is for those
that may be wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from engines.trtllm.settings import KvDtype, Router, TrtServers, TrtSettings

Phase = Literal["serve", "context", "generation"]
PHASES: tuple[Phase, ...] = ("context", "generation")


class Role(Struct, frozen=True, kw_only=True):
    """What servers of one kind are told. All of a kind are told the same."""

    phase: Phase  # serve: prompts and answers both
    path: str  # the checkpoint's folder
    kv_dtype: KvDtype
    tensor_parallel: int
    pipeline_parallel: int
    expert_parallel: int
    memory_fraction: float
    max_batch_size: int
    max_num_tokens: int
    urls: tuple[str, ...] = ()  # host:port of each, where there are phases
    router: Router = ""

    @property
    def ranks(self) -> int:
        """GPUs that one server needs. Expert parallelism shares those of tensor parallelism."""
        return self.tensor_parallel * self.pipeline_parallel


def is_disaggregated(trt: TrtSettings) -> bool:
    """Whether prompts are computed apart from answers."""
    return bool(trt.context.urls or trt.generation.urls)


def roles(path: str, trt: TrtSettings) -> tuple[Role, ...]:
    """The kinds of server that a model has. `path`: its checkpoint."""
    if not is_disaggregated(trt):
        return (_role("serve", path, trt, TrtServers()),)
    return tuple(_role(phase, path, trt, servers) for phase, servers in phases(trt))


def phases(trt: TrtSettings) -> Iterator[tuple[Phase, TrtServers]]:
    """Context and generation, and what is said of each."""
    for phase in PHASES:
        yield phase, getattr(trt, phase)


def _role(phase: Phase, path: str, trt: TrtSettings, servers: TrtServers) -> Role:
    return Role(
        phase=phase,
        path=servers.path or path,
        kv_dtype=servers.kv_dtype or trt.kv_dtype,
        tensor_parallel=servers.tensor_parallel or trt.tensor_parallel,
        pipeline_parallel=servers.pipeline_parallel or trt.pipeline_parallel,
        expert_parallel=servers.expert_parallel or trt.expert_parallel,
        memory_fraction=servers.memory_fraction or trt.memory_fraction,
        max_batch_size=servers.max_batch_size or trt.max_batch_size,
        max_num_tokens=servers.max_num_tokens or trt.max_num_tokens,
        urls=servers.urls,
        router=servers.router,
    )
