"""Where blocks change hands: around vLLM's block pool, KV cache manager and scheduler.

All of it runs in the engine core's process, in its one thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from bulkhead_vllm_tags import Refused, shared
from bulkhead_vllm_tags.ledger import Ledger
from bulkhead_vllm_tags.patching import around

log = logging.getLogger("vllm.bulkhead_tags")  # under vLLM's own, which has a handler
UNSALTED = ""  # the domain of requests that name no salt: they are one another's


def install() -> None:
    """From now on each scheduler of this process keeps a ledger."""
    _around_the_scheduler()
    _around_the_manager()
    _around_the_pool()
    _around_the_prefix_cache()


def unfit(config: Any, num_groups: int) -> str:
    """Why tags can't be kept under this configuration of vLLM; "" if they can."""
    reasons = {
        "async scheduling: a step is prepared while the blocks of the one before it still move":
            config.scheduler_config.async_scheduling,
        "the V2 model runner: only the V1 runner's table is checked": config.use_v2_model_runner,
        "speculative decoding": config.speculative_config is not None,
        "a KV connector: it moves blocks that no table names":
            config.kv_transfer_config is not None,
        "several workers: one table is checked": config.parallel_config.world_size > 1,
        f"{num_groups} groups of KV blocks: one is followed": num_groups != 1,
    }  # fmt: skip
    return "; ".join(reason for reason, is_so in reasons.items() if is_so)


def _around_the_scheduler() -> None:
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
    from vllm.v1.request import RequestStatus

    @around(Scheduler, "__init__")
    def init(inner: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        inner(self, *args, **kwargs)
        manager = self.kv_cache_manager
        if why := unfit(self.vllm_config, len(manager.coordinator.single_type_managers)):
            raise Refused(f"page tags can't be kept with {why}: change that, or uninstall them")
        path, tags = shared.create(manager.block_pool.num_gpu_blocks)
        manager.bulkhead_path = path
        manager.bulkhead = manager.block_pool.bulkhead = Ledger(tags)

    @around(Scheduler, "schedule")
    def schedule(inner: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        output = inner(self, *args, **kwargs)
        manager = self.kv_cache_manager
        news = manager.bulkhead.news(output.num_scheduled_tokens)
        output.bulkhead = (manager.bulkhead_path, news)
        return output

    @around(Scheduler, "update_from_output")
    def update_from_output(inner: Any, self: Any, scheduled: Any, output: Any) -> Any:
        broken: dict[str, str] = getattr(output, "bulkhead_broken", {})
        for request, phase in broken.items():
            log.error("kv_tag_mismatch phase=%s request=%s", phase, request)
            _keep_what_is_held(self.kv_cache_manager, request)
        # It has ended by the time vLLM looks at its tokens: they are dropped, with what they read.
        ended = self.finish_requests(broken, RequestStatus.FINISHED_ERROR)
        outputs = inner(self, scheduled, output)
        for request in ended:
            outputs.setdefault(request.client_index, EngineCoreOutputs()).outputs.append(
                EngineCoreOutput(
                    request_id=request.request_id,
                    new_token_ids=[],
                    finish_reason=request.get_finished_reason(),
                    events=request.take_events(),
                    trace_headers=request.trace_headers,
                )
            )
        return outputs


def _around_the_manager() -> None:
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    @around(KVCacheManager, "allocate_slots")
    def allocate_slots(inner: Any, self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        id = request.request_id
        with self.bulkhead.allocating_for(id, request.cache_salt or UNSALTED):
            blocks = inner(self, request, *args, **kwargs)
        table = _table(self, id)
        self.bulkhead.hold(id, (b.block_id for b in table[self.bulkhead.num_held(id) :]))
        return blocks

    @around(KVCacheManager, "free")
    def free(inner: Any, self: Any, request: Any) -> None:
        inner(self, request)
        self.bulkhead.forget(request.request_id)

    @around(KVCacheManager, "pop_blocks_for_free")
    def pop_blocks_for_free(inner: Any, self: Any, request: Any) -> Any:
        blocks = inner(self, request)
        self.bulkhead.forget(request.request_id)
        return blocks


def _around_the_pool() -> None:
    from vllm.v1.core.block_pool import BlockPool

    @around(BlockPool, "get_new_blocks")
    def get_new_blocks(inner: Any, self: Any, num_blocks: int) -> Any:
        blocks = inner(self, num_blocks)
        self.bulkhead.allocated(block.block_id for block in blocks)
        return blocks

    @around(BlockPool, "free_blocks")
    def free_blocks(inner: Any, self: Any, ordered_blocks: Iterable[Any]) -> None:
        blocks = list(ordered_blocks)
        inner(self, blocks)
        self.bulkhead.given_up(_uncached(blocks))


def _around_the_prefix_cache() -> None:
    from vllm.v1.core.block_pool import BlockPool

    @around(BlockPool, "get_cached_block")
    def get_cached_block(inner: Any, self: Any, key: Any, groups: list[int]) -> Any:
        found = inner(self, key, groups)
        current = self.bulkhead.is_entry_current
        if found and not all(current(block.block_hash, block.block_id) for block in found):
            return None
        return found

    @around(BlockPool, "_insert_block_hash")
    def insert(inner: Any, self: Any, key: Any, block: Any, num_tokens: Any) -> None:
        inner(self, key, block, num_tokens)
        self.bulkhead.entered(key, block.block_id)

    @around(BlockPool, "_remove_cached_block_hashes")
    def remove(inner: Any, self: Any, block: Any) -> Any:
        keys = inner(self, block)
        for key in keys:
            self.bulkhead.removed(key, block.block_id)
        if keys:
            self.bulkhead.given_up(_uncached([block]))
        return keys

    @around(BlockPool, "reset_prefix_cache")
    def reset(inner: Any, self: Any) -> bool:
        is_empty = bool(inner(self))
        if is_empty:
            self.bulkhead.no_entries()
        return is_empty


def _uncached(blocks: Iterable[Any]) -> list[int]:
    """Those that nobody holds and that can't be found again."""
    return [b.block_id for b in blocks if b.ref_cnt == 0 and b.block_hash is None]


def _table(manager: Any, request: str) -> list[Any]:
    """vLLM's own list of the request's blocks."""
    (only,) = manager.coordinator.single_type_managers
    blocks: list[Any] = only.req_to_blocks.get(request, [])
    return blocks


def _keep_what_is_held(manager: Any, request: str) -> None:
    """Of its table only what is still its own: vLLM would give up a block of its new holder's."""
    table = _table(manager, request)
    held = manager.bulkhead.still_held(request, [block.block_id for block in table])
    table[:] = [block for block, is_held in zip(table, held, strict=True) if is_held]
