"""Plays TensorRT-LLM's loop around the guard, where there is nothing of ours but the guard.

A script: `inside.py FOLDER SCENE...` runs each scene in a process of its own and prints what came
of it as one JSON object. It imports the standard library, numpy, torch, the package that
`stub_tensorrt_llm` wrote, and the guard's own files. What a scene returns, `test_guard` judges.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import resource
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy  # noqa: F401
import torch

PLAIN = {name.partition(".")[0] for name in sys.modules}  # what numpy and torch bring

from tensorrt_llm._torch.attention_backend.trtllm import TrtllmAttentionMetadata  # noqa: E402

from engines.trtllm import blindness, folder as places, guard, journal, stops  # noqa: E402

try:
    from tensorrt_llm._torch.pyexecutor.connectors import kv_cache_connector as connector
except ImportError:
    from tensorrt_llm._torch.pyexecutor import kv_cache_connector as connector

HAS_HOOK = hasattr(connector.RequestData("", [], [], 0, 0), "cache_salt")
BLOCK = 4  # tokens
NUM_BLOCKS, LAYERS = 64, 3
REASON = "kv_integrity_abort"


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
        assert self.worker.register_forward_pass_callable() is None
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

    def iterate(self, requests: list[Request], harm: Any = None) -> Any:
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


def scene_sound() -> Any:
    """Decode steps that add blocks and such that add none; an end; a block that is used again."""
    executor, one, other = begun()
    metadata = []
    for _ in range(6):
        metadata.append(executor.iterate([one, other]))
    executor.finish(other)
    third = Request(102, 4, "tenant b", list(range(50, 60)), [3, 6, 7], matched=4)
    executor.admit(third)
    metadata.append(executor.iterate([one, third]))
    return result(one, other, third) | {"metadata": metadata}


def scene_foreign() -> Any:
    """A request of another salt finds its prompt's beginning in a block of the first tenant."""
    executor, one, other = begun()
    thief = Request(102, 4, "tenant b", list(range(9)), [0, 6, 7], matched=4)
    executor.admit(thief)
    for _ in range(3):
        executor.iterate([one, other, thief])
    return result(one, other, thief)


def scene_unnamed() -> Any:
    """The same, where the request doesn't say by which id the server knows it."""
    executor, one, other = begun()
    thief = Request(102, None, "tenant b", list(range(9)), [0, 6, 7], matched=4)
    executor.admit(thief)
    executor.iterate([one, other])
    return result(one, other)


def scene_device() -> Any:
    """Of one row, the table that attention reads isn't what the scheduler said."""
    executor, one, other = begun()

    def harm(table: Any) -> None:
        table[0, 1, 1, 1] = table[0, 0, 1, 2]

    executor.iterate([one, other], harm)
    executor.iterate([one, other])
    return result(one, other)


def scene_odd_table() -> Any:
    """A version whose table is laid out in another way: the ledger goes on alone."""
    executor, (one, other) = Executor(), pair()
    for request in (one, other):
        executor.admit(request)

    def lay_out_otherwise(table: Any) -> None:
        table //= 2

    for _ in range(2):
        executor.iterate([one, other], lay_out_otherwise)
    return result(one, other) | {"off": executor.worker._table.is_off}


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


def scene_modules() -> Any:
    """What the guard brings into the process beside what torch brings."""
    if HAS_HOOK:
        import engines.trtllm.hook  # noqa: F401
    new = {name.partition(".")[0] for name in sys.modules} - PLAIN
    ours = [module.__file__ for name, module in sys.modules.items() if name.startswith("engines")]
    return {
        "new": sorted(new - set(sys.stdlib_module_names) - {"__mp_main__"}),
        "ours": sorted(map(str, ours)),
    }


def scene_speed() -> Any:
    """A step of 16 requests: only that it's no work of another order. ms."""
    executor = Executor()
    requests = [
        Request(100 + i, i, f"tenant {i}", list(range(8)), [2 * i, 2 * i + 1]) for i in range(8)
    ]
    for request in requests:
        executor.admit(request)
    executor.iterate(requests)
    started = time.perf_counter()
    executor.iterate(requests)
    return {"ms": 1000 * (time.perf_counter() - started)}


def played(folder: Path, name: str) -> Any:
    """The scene's result, from a child: scenes leave traces in the process."""
    ours = folder / name
    ours.mkdir(mode=0o700)
    read, write = os.pipe()
    if os.fork() == 0:
        os.environ[places.VARIABLES[0]] = str(ours)
        try:
            told = {"result": globals()[f"scene_{name}"]()}
        except BaseException as error:
            logging.getLogger(name).exception("raised")
            told = {"raised": repr(error)}
        os.write(write, json.dumps(told).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        told = json.load(file)
    os.wait()
    return told


if __name__ == "__main__":
    folder, *names = sys.argv[1:]
    torch.set_num_threads(1)
    json.dump({name: played(Path(folder), name) for name in names}, sys.stdout)
