"""All that the guard does on rank 0 in a step but on the device: for `bench_guard`.

As TensorRT-LLM's objects are read, the ledger is told, its counters are put where others read them,
ranks are told, and a rank lays out what its table should name.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from engines.trtllm.rows import Scheduled
from engines.trtllm.seen import request_of, scheduled_of, told_of
from engines.trtllm.tables import Tables
from engines.trtllm.watch import Watch


class Inside:
    """One server's."""

    def __init__(self, tokens_per_block: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._watch = Watch(Path(self._folder.name), tokens_per_block)
        self._tables = Tables()
        self._known: set[int] = set()

    def allocated(self, request: int, salt: str, blocks: list[int], prompt: list[int]) -> None:
        found = SimpleNamespace(
            request_id=request,
            py_client_id=request,
            cache_salt=salt,
            get_tokens=lambda _beam: prompt,
        )
        self._watch.allocated(request_of(found, blocks, 0))

    def output(self, items: Sequence[Scheduled]) -> Any:
        """What TensorRT-LLM would hand over."""
        output = SimpleNamespace(new_requests=[], cached_requests=[])
        for item in items:
            requests = (
                output.cached_requests if item.request in self._known else output.new_requests
            )
            self._known.add(item.request)
            requests.append(
                SimpleNamespace(
                    request_id=item.request,
                    new_tokens=list(item.new_tokens),
                    new_block_ids=list(item.new_blocks),
                    computed_position=item.computed_position,
                    num_scheduled_tokens=item.num_tokens,
                )
            )
        return output

    def step(self, output: Any) -> None:
        self._watch.step(scheduled_of(output))
        told = told_of(output, ())
        self._tables.told(told)
        self._tables.of([request for request, _, _ in told])

    @property
    def is_sound(self) -> bool:
        """It has found nothing, and hasn't failed."""
        return not self._watch.is_poisoned and not self._watch.num_violations
