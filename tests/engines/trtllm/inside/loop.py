"""TensorRT-LLM's loop around the guard, as far as the guard sees it, on one rank.

For a process that has the standard library, numpy, torch, the package that `stub_tensorrt_llm`
wrote, and the guard's own files: `scenes` plays in it.
"""

from __future__ import annotations

import pickle
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy  # noqa: F401
import torch

PLAIN = {name.partition(".")[0] for name in sys.modules}  # what numpy and torch bring

from tensorrt_llm._torch.attention_backend.trtllm import TrtllmAttentionMetadata  # noqa: E402

from engines.trtllm import (  # noqa: E402
    blindness,
    folder as places,
    guard,
    journal,
    stops,
)

try:
    from tensorrt_llm._torch.pyexecutor.connectors import kv_cache_connector as connector
except ImportError:
    from tensorrt_llm._torch.pyexecutor import kv_cache_connector as connector

__all__ = [
    "HAS_HOOK",
    "PLAIN",
    "Executor",
    "Request",
    "begun",
    "blindness",
    "guard",
    "llm_args",
    "pair",
    "places",
    "result",
    "stops",
]

HAS_HOOK = hasattr(connector.RequestData("", [], [], 0, 0), "cache_salt")
BLOCK = 4  # tokens
NUM_BLOCKS, LAYERS = 64, 3


@dataclass
class Request:
    """As an `LlmRequest`, but for the salt, which `__getattr__` has as its generation does."""

    request_id: int
    py_client_id: int | None
    salt: str
    tokens: list[int]
    blocks: list[int]
    matched: int = 0
    lora_task_id: int | None = None
    told_blocks: int = 0
    told_tokens: int = 0
    is_new: bool = True
    output: list[str] = field(default_factory=list)

    @property
    def context_current_position(self) -> int:
        return self.matched

    def get_tokens(self, _beam: int) -> list[int]:
        return self.tokens

    def __getattr__(self, name: str) -> Any:
        if name == ("cache_salt" if HAS_HOOK else "cache_salt_id"):
            return self.salt if HAS_HOOK else sum(map(ord, self.salt))
        raise AttributeError(name)


class Executor:
    """One rank's loop: each step of it in the order in which TensorRT-LLM has them."""

    def __init__(self) -> None:
        self.scheduler = guard.GuardScheduler(llm_args())
        self.worker = guard.GuardWorker(llm_args())
        self.passed: Any = self.worker.register_forward_pass_callable()
        self.worker.register_kv_caches(torch.zeros(NUM_BLOCKS, LAYERS, 2, 8))
        if hasattr(self.scheduler, "wait_for_initialization"):
            assert self.scheduler.wait_for_initialization() is None
        self.metadata = TrtllmAttentionMetadata(torch.zeros(1, 8, 2, 16, dtype=torch.int32))
        self.next_block = 20
        self.hook: Any = None
        if HAS_HOOK:
            from engines.trtllm.hook import GuardHook

            self.hook = GuardHook()

    def admit(self, request: Request) -> None:
        """Blocks are given: what is called from C++ has less of the request."""
        bound = SimpleNamespace(request_id=request.request_id)
        assert self.scheduler.get_num_new_matched_tokens(bound, request.matched) == (0, False)
        assert self.scheduler.update_state_after_alloc(request, list(request.blocks)) is None

    def iterate(self, requests: list[Request], harm: Any = None, late_harm: Any = None) -> Any:
        """One step; then each request has a further token, which goes out if the hook lets it."""
        output = connector.SchedulerOutput()
        for request in requests:
            if len(request.tokens) > len(request.blocks) * BLOCK:
                request.blocks.append(self.next_block)
                self.next_block += 1
            (output.new_requests if request.is_new else output.cached_requests).append(
                told(request)
            )
        metadata = pickle.loads(pickle.dumps(self.scheduler.build_connector_meta(output)))
        self.worker.bind_connector_meta(metadata)
        assert self.worker.get_connector_meta() == metadata
        self.worker.start_load_kv(None)
        self.fill(requests)
        if harm:
            harm(self.metadata.host_table)
        self.metadata.prepare()
        for layer in range(LAYERS):
            assert self.worker.wait_for_layer_load(layer, None) is None
            assert self.worker.save_kv_layer(layer, None) is None
        if late_harm:
            late_harm(self.metadata.kv_cache_block_offsets)
        assert self.passed() is None
        assert self.worker.wait_for_save(None) is None
        self.worker._clear_connector_meta()
        assert self.worker.get_finished([], []) == ([], [])
        for request in requests:
            self.sample(request)
        return metadata

    def fill(self, requests: list[Request]) -> None:
        self.metadata.request_ids = [request.request_id for request in requests]
        for row, request in enumerate(requests):
            blocks = torch.tensor(request.blocks, dtype=torch.int32) * LAYERS * 2
            self.metadata.host_table[0, row, 0, : len(blocks)] = blocks
            self.metadata.host_table[0, row, 1, : len(blocks)] = blocks + 1

    def sample(self, request: Request) -> None:
        text = f"<{len(request.tokens)}>"
        request.tokens.append(len(request.tokens))
        if self.hook is None:
            request.output.append(text)
            return
        verdict = self.hook(
            SimpleNamespace(
                request_id=request.py_client_id,
                text_diff=text,
                text="".join(request.output) + text,
                token_ids_diff=[1],
            )
        )
        request.output.append(
            verdict.text if verdict.action == "emit" else f"{verdict.action} {verdict.reason}"
        )

    def finish(self, request: Request) -> None:
        assert self.scheduler.request_finished(request, list(request.blocks)) is False


def told(request: Request) -> Any:
    """As `update_and_build_data` does: what is new since it was last told."""
    position = request.matched if request.is_new else len(request.tokens) - 1
    later = {"cache_salt": request.salt} if HAS_HOOK else {}
    data = connector.RequestData(
        request.request_id,
        request.tokens[request.told_tokens :],
        request.blocks[request.told_blocks :],
        position,
        len(request.tokens) - position,
        **later,
    )
    request.told_tokens, request.told_blocks = len(request.tokens), len(request.blocks)
    request.is_new = False
    return data


def llm_args(**changes: Any) -> Any:
    """What the rendered file makes of TorchLlmArgs, as far as the guard looks."""
    cache = {
        "tokens_per_block": BLOCK,
        "enable_block_reuse": True,
        "enable_partial_reuse": False,
        "host_cache_size": 0,
        "use_kv_cache_manager_v2": False,
        "max_attention_window": None,
    }
    args = {
        "disable_overlap_scheduler": True,
        "enable_chunked_prefill": False,
        "speculative_config": None,
        "pipeline_parallel_size": 1,
        "scheduler_config": SimpleNamespace(
            capacity_scheduler_policy=SimpleNamespace(name="GUARANTEED_NO_EVICT")
        ),
    }
    for name, value in changes.items():
        (cache if name in cache else args)[name] = value
    return SimpleNamespace(**args, kv_cache_config=SimpleNamespace(**cache))


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
