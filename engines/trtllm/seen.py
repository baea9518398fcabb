"""What the guard reads of TensorRT-LLM's objects, over the versions that it knows.

A missing attribute that isn't asked for with a default is an error, and so poisons the guard: it
is better to stop than to see half.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Any

from engines.trtllm.shadow import Scheduled
from engines.trtllm.tables import Told
from engines.trtllm.watch import Request


def request_of(request: Any, blocks: Sequence[int], matched: int | None) -> Request:
    """An `LlmRequest` that was given blocks; `matched`: tokens that were found in the cache."""
    return Request(
        id=request.request_id,
        client=_client_of(request),
        salt=_salt_of(request),
        blocks=blocks,
        computed_tokens=request.context_current_position if matched is None else matched,
        tokens=request.get_tokens(0),
        adapter=getattr(request, "lora_task_id", None) or 0,
    )


def _client_of(request: Any) -> int | None:
    """The server's id of it, by which its hook is asked."""
    client = getattr(request, "py_client_id", None)
    if client is None:
        client = getattr(request, "client_id", None)
    return None if client is None else int(client)


def _salt_of(request: Any) -> str | int | None:
    """Later versions keep the salt; earlier ones only a number that is made of it."""
    salt = getattr(request, "cache_salt", None)
    if salt is None:
        salt = getattr(request, "cache_salt_id", None)
    return salt if isinstance(salt, str | int) else None


def scheduled_of(output: Any) -> Iterator[Scheduled]:
    """Every request of a `SchedulerOutput`."""
    for data in (*output.new_requests, *output.cached_requests):
        yield Scheduled(
            data.request_id,
            data.new_block_ids,
            data.computed_position,
            data.num_scheduled_tokens,
            data.new_tokens,
        )


def told_of(output: Any, begun: Container[int]) -> Told:
    """The same for the ranks: what each request's list has gained.

    `begun`: those that were given blocks before this step. One of them that isn't new here has an
    id that was there before, and its gains are against another list: it is told to be forgotten.
    """
    new = tuple((data.request_id, True, tuple(data.new_block_ids)) for data in output.new_requests)
    return new + tuple(
        (data.request_id, None, ())
        if data.request_id in begun
        else (data.request_id, False, tuple(data.new_block_ids))
        for data in output.cached_requests
    )
