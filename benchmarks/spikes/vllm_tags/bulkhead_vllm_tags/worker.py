"""Before each forward pass: the table in attention's own hands, against the pool's tags.

In the process that computes. A row at fault reads and writes vLLM's null block instead, so that
neither does it read another's text nor write over it; the scheduler then ends its request.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bulkhead_vllm_tags import shared
from bulkhead_vllm_tags.check import astray_rows, broken_rows
from bulkhead_vllm_tags.ledger import NULL_BLOCK, News, Tags
from bulkhead_vllm_tags.patching import around

NOTHING = np.zeros(0, np.uint64)


class Watch:
    """What a worker knows: the pool's tags, what each request was given, and the step that runs."""

    def __init__(self) -> None:
        self.broken: dict[str, str] = {}  # requests of this step, and when it was seen
        self.is_due = False  # something is computed, and nobody has looked yet
        self._path = ""
        self._tags: Tags = NOTHING
        self._given: dict[str, tuple[int, Tags]] = {}
        self._step: tuple[list[str], Any, Any, list[Tags], list[int]] = (
            [],
            NOTHING,
            NOTHING,
            [],
            [],
        )

    def begin(self, path: str, news: dict[str, News], ended: set[str], is_due: bool) -> None:
        """A step comes."""
        if path != self._path:
            self._path, self._tags = path, shared.attach(path)
        for request in ended:
            self._given.pop(request, None)
        for request, new in news.items():
            _, before = self._given.get(request, (0, NOTHING))
            tags = np.concatenate([before[: new.start], np.array(new.tags, np.uint64)])
            self._given[request] = (new.slot, tags)
        self.broken, self.is_due = {}, is_due

    def before(self, requests: list[str], metadata: Any, block_size: int) -> None:
        """Compare what will be read, and keep rows at fault from reading and writing it."""
        table = metadata.block_table.numpy()[: len(requests)]
        lengths = metadata.seq_lens.numpy()[: len(requests)].astype(np.int64)
        given = [self._given.get(request, (0, NOTHING)) for request in requests]
        tags, slots = [tags for _, tags in given], [slot for slot, _ in given]
        self._step = (list(requests), table, -(-lengths // block_size), tags, slots)
        starts = metadata.query_start_loc.numpy()[: len(requests) + 1].astype(np.int64)
        slot_mapping = metadata.slot_mapping.numpy()
        astray = astray_rows(table, lengths, starts, slot_mapping, block_size)
        for row in {*broken_rows(self._tags, *self._step[1:]), *astray}:
            self.broken[requests[row]] = "before"
            table[row] = NULL_BLOCK
            slot_mapping[starts[row] : starts[row + 1]] %= block_size  # of the null block
        self.is_due = False

    def after(self) -> None:
        """Compare again what was read, before any token leaves."""
        requests, *arrays = self._step
        for row in broken_rows(self._tags, *arrays):
            self.broken.setdefault(requests[row], "after")


def install() -> None:
    """From now on each CPU model runner of this process looks before it computes."""
    from vllm.forward_context import get_forward_context
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    @around(CPUModelRunner, "execute_model")
    def execute_model(inner: Any, self: Any, scheduled: Any, *args: Any, **kwargs: Any) -> Any:
        watch = self.__dict__.setdefault("bulkhead", Watch())
        is_due = scheduled.total_num_scheduled_tokens > 0
        watch.begin(*scheduled.bulkhead, scheduled.finished_req_ids, is_due)
        output = inner(self, scheduled, *args, **kwargs)
        assert not watch.is_due, "a step was computed and nobody looked at its table"
        return output

    @around(CPUModelRunner, "_model_forward")
    def model_forward(inner: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if (watch := self.__dict__.get("bulkhead")) and watch.is_due:
            (group,) = self.kv_cache_config.kv_cache_groups
            layers = get_forward_context().attn_metadata.values()
            (metadata,) = {id(one): one for one in layers}.values()
            watch.before(self.input_batch.req_ids, metadata, group.kv_cache_spec.block_size)
        return inner(self, *args, **kwargs)

    @around(CPUModelRunner, "sample_tokens")
    def sample_tokens(inner: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        output = inner(self, *args, **kwargs)
        self.bulkhead.after()
        if self.bulkhead.broken:
            output.bulkhead_broken = self.bulkhead.broken
        return output
