"""The guard that TensorRT-LLM loads as its KV-cache connector: it looks on, and moves no block.

    kv_connector_config:
      connector_module: engines.trtllm.guard
      connector_scheduler_class: GuardScheduler
      connector_worker_class: GuardWorker

TensorRT-LLM makes one scheduler, on rank 0, and a worker on each rank, and calls them from the loop
that runs every request: an exception there ends the server. So nothing is raised from a callback;
whatever goes wrong poisons the guard, which stops every request. Only at the start, when nothing
runs yet, is what would blind the guard an error.

In each iteration: blocks are given (`update_state_after_alloc`), all that is scheduled is told
(`build_connector_meta`), and what that returns goes to each worker (`start_load_kv`), before the
forward pass. What it returns is plain tuples of numbers, which travel between ranks.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from engines.trtllm import device_table
from engines.trtllm.blindness import Blinded, blinders
from engines.trtllm.device_table import DeviceTable
from engines.trtllm.folder import NoFolder, guard_folder
from engines.trtllm.seen import request_of, scheduled_of, told_of
from engines.trtllm.state import StateFile
from engines.trtllm.watch import Watch

try:
    from tensorrt_llm._torch.pyexecutor.connectors.kv_cache_connector import (
        KvCacheConnectorScheduler,
        KvCacheConnectorWorker,
    )
except ImportError:  # 1.2 and before
    from tensorrt_llm._torch.pyexecutor.kv_cache_connector import (
        KvCacheConnectorScheduler,
        KvCacheConnectorWorker,
    )

log = logging.getLogger("bulkhead.guard")

Answer = TypeVar("Answer")


class _Here:
    """What the two halves share where they are in one process: on rank 0."""

    watch: Watch | None = None


def _answers(answer: Answer) -> Callable[[Callable[..., Any]], Callable[..., Answer]]:
    """Makes a method an observer's: it returns `answer`, or what it says, and raises nothing."""

    def observing(method: Callable[..., Any]) -> Callable[..., Answer]:
        @functools.wraps(method)
        def observed(self: Any, *args: Any, **kwargs: Any) -> Answer:
            try:
                said = method(self, *args, **kwargs)
            except Exception as error:  # noqa: BLE001 - it would end the server
                self._fail(error)
                return answer
            return answer if said is None else said

        return observed

    return observing


class GuardScheduler(KvCacheConnectorScheduler):
    """Rank 0: sees every block that is given, and every request of every step."""

    def __init__(self, llm_args: Any) -> None:
        """Raises Blinded or NoFolder or OSError: the server doesn't start."""
        super().__init__(llm_args)
        if faults := list(blinders(llm_args)):
            raise Blinded("; ".join(faults))
        self._watch = Watch(guard_folder(), llm_args.kv_cache_config.tokens_per_block)
        self._matched: dict[int, int] = {}
        self._begun: set[int] = set()
        _Here.watch = self._watch

    @_answers((0, False))
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> None:
        """Nothing comes from elsewhere. How much was found in the cache is noted."""
        self._matched[request.request_id] = num_computed_tokens

    @_answers(None)
    def update_state_after_alloc(self, request: Any, block_ids: Any) -> None:
        found = request_of(request, block_ids, self._matched.get(request.request_id))
        self._begun.add(found.id)
        self._watch.allocated(found)

    @_answers(())
    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """Every step's: also one that adds no block."""
        begun, self._begun = self._begun, set()
        self._matched.clear()
        self._watch.step(scheduled_of(scheduler_output))
        return told_of(scheduler_output, begun)

    @_answers(False)
    def request_finished(self, request: Any, cache_block_ids: Any) -> None:
        """Nothing is saved: its blocks may go at once."""
        self._watch.finished(request.request_id, cache_block_ids)

    @_answers(None)
    def request_reset(self, request: Any) -> None:
        """In later versions: what it was given is gone, and it will begin anew."""
        self._watch.finished(getattr(request, "request_id", request))

    @_answers(None)
    def cancel_load(self, *_: Any) -> None:
        """In later versions: nothing is ever loaded."""

    @_answers(None)
    def wait_for_initialization(self) -> None:
        """In later versions: there is nothing to wait for."""

    def _fail(self, error: Exception) -> None:
        self._watch.poison(error)


class GuardWorker(KvCacheConnectorWorker):
    """Each rank: the table that its attention reads, where the version lets it be seen."""

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self._table = DeviceTable()
        self._state: StateFile | None = None
        self._meta: Any = None
        if why := device_table.reach(self._prepared):
            self._table.turn_off(why)

    @_answers(None)
    def register_kv_caches(self, kv_cache_tensor: Any) -> None:
        self._table.pool_is(kv_cache_tensor)
        if _Here.watch is not None:
            _Here.watch.pool_is(kv_cache_tensor.shape[0])

    @_answers(None)
    def register_forward_pass_callable(self) -> Callable[[], None]:
        """What is called when a pass has been queued: behind it the table is looked at again."""
        return self._passed

    @_answers(None)
    def bind_connector_meta(self, metadata: Any) -> None:
        self._meta = metadata

    @_answers(None)
    def get_connector_meta(self) -> Any:
        return self._meta

    @_answers(None)
    def _clear_connector_meta(self) -> None:
        self._meta = None

    @_answers(None)
    def start_load_kv(self, stream: Any) -> None:
        """Before a pass. Its table is filled, and checked, after this."""
        self._table.start(self._meta or ())

    @_answers(None)
    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None:
        """Nothing is loaded."""

    @_answers(None)
    def save_kv_layer(self, layer_idx: int, stream: Any) -> None:
        """Nothing is saved."""

    @_answers(None)
    def wait_for_save(self, stream: Any) -> None:
        """Behind a pass: what its table's check found, before any of its tokens goes out."""
        if _Here.watch is not None:
            _Here.watch.passed()
        before = self._table.num_checked
        faults = self._table.faults()
        checked = self._table.num_checked - before
        if _Here.watch is not None:
            if checked:
                _Here.watch.found_on_device(faults, checked)
        elif faults:
            raise RuntimeError("a rank's device table is wrong")

    def get_finished(
        self, finished_gen_req_ids: Any, started_loading_req_ids: Any
    ) -> tuple[list[int], list[int]]:
        """Nothing was begun, and so nothing ends."""
        return [], []

    def _prepared(self, metadata: Any) -> None:
        """Called by attention's metadata, in the loop, too."""
        try:
            if (found := device_table.table_in(metadata)) is not None:
                self._table.filled(*found)
        except Exception as error:  # noqa: BLE001 - it would end the server
            self._fail(error)

    @_answers(None)
    def _passed(self) -> None:
        self._table.passed()

    def _fail(self, error: Exception) -> None:
        """On another rank than 0 there is no ledger, but the same folder, if it's this machine."""
        if _Here.watch is not None:
            _Here.watch.poison(error)
            return
        log.critical("bulkhead guard: a worker failed: %s: poisoned", type(error).__name__)
        try:
            self._state = self._state or StateFile.open(guard_folder())
        except NoFolder as none:
            log.critical("bulkhead guard: nobody hears it: %s", none)
        if self._state is not None:
            self._state.poison()
