"""The post-processor hook: stops the text of a request that the guard found at fault.

Loaded by TensorRT-LLM, where the version has such hooks, in each process that turns tokens into
text, as `post_processor_hook: engines.trtllm.hook.GuardHook`, and asked before each piece of an
answer goes out. TensorRT-LLM lets a piece pass whose hook raised: so nothing is raised here, and
whatever goes wrong stops the request.
"""

from __future__ import annotations

import logging
from typing import Any, Protocol

from tensorrt_llm.executor.postprocessor_hook import emit, terminate

from engines.trtllm.folder import guard_folder
from engines.trtllm.gate import Gate

STOP_REASON = "kv_integrity_abort"  # what the gateway knows it by

log = logging.getLogger("bulkhead.guard")


class Piece(Protocol):
    """What we read of TensorRT-LLM's `PostProcessorHookChunk`."""

    request_id: int
    text_diff: str
    token_ids_diff: list[int]


class GuardHook:
    """Made once a process, without arguments."""

    def __init__(self) -> None:
        self._gate: Gate | None = None
        try:
            self._gate = Gate(guard_folder())
        except Exception as error:  # noqa: BLE001 - without a gate nothing passes
            log.critical("bulkhead guard: no text will go out: %s", error)

    def __call__(self, chunk: Piece) -> Any:
        """TensorRT-LLM's verdict: its class has had two names, so none is imported."""
        try:
            if self._lets_through(chunk):
                return emit(chunk.text_diff)
        except Exception as error:  # noqa: BLE001 - an exception would let the piece pass
            self._fail(error)
        return terminate(STOP_REASON)

    def _lets_through(self, chunk: Piece) -> bool:
        if self._gate is None:
            return False
        has_output = bool(chunk.token_ids_diff) or bool(chunk.text_diff)
        return self._gate.lets_through(chunk.request_id, has_output)

    def _fail(self, error: Exception) -> None:
        """Only the kind of the error is told: its text might quote the answer's."""
        log.critical("bulkhead guard: the hook failed: %s", type(error).__name__)
        if self._gate is not None:
            self._gate.poison()
