"""Token ids of plain prompts, for servers that keep only chats of different tenants apart.

Tokenizers are reached by name, as engines are, and used in threads. Loading one stops every thread
for a part of a second: so it's done when a configuration that names it comes into force.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog
from anyio import CapacityLimiter, to_thread

from engines import registry
from engines.api import EngineError, PromptEncoder, RequestRefused
from gateway.errors import BadRequest, UpstreamFailed

log = structlog.get_logger()

THREADS = 2  # so many prompts are encoded at once, which bounds memory too
Stamp = tuple[int, int]  # of a file: when it was written, and its size


class PromptEncoders:
    """One for each folder that the configuration names."""

    def __init__(self, load: Callable[[str], PromptEncoder] = registry.prompt_encoder) -> None:
        self._load = load
        self._known: dict[str, tuple[Stamp, PromptEncoder]] = {}
        self._loading = asyncio.Lock()
        self._threads = CapacityLimiter(THREADS)

    async def keep(self, folders: Iterable[str]) -> None:
        """Have these ready, as they are now, and no others. One that can't be read is logged."""
        wanted = set(folders)
        self._known = {name: known for name, known in self._known.items() if name in wanted}
        for folder in wanted:
            try:
                await self._loaded(folder)
            except EngineError as fault:
                log.error("tokenizer_unusable", folder=folder, reason=str(fault))

    async def ids(self, folder: str, prompt: str | list[int]) -> list[int]:
        """What a plain prompt's engine would be given. Raises BadRequest, UpstreamFailed."""
        if isinstance(prompt, list):
            return prompt
        try:
            known = self._known.get(folder)
            encoder = known[1] if known else await self._loaded(folder)
            ids = await to_thread.run_sync(encoder.encode_prompt, prompt, limiter=self._threads)
        except RequestRefused as fault:
            raise BadRequest(str(fault), param="prompt") from None
        except EngineError as fault:
            log.error("tokenizer_unusable", folder=folder, reason=str(fault))
            raise UpstreamFailed("the engine failed; the operator has been told") from None
        if not ids:
            raise BadRequest("prompt: holds nothing that is a token", param="prompt")
        return ids

    async def _loaded(self, folder: str) -> PromptEncoder:
        async with self._loading:
            stamp = await to_thread.run_sync(_stamp, folder)
            known = self._known.get(folder)
            if known is None or known[0] != stamp:
                known = stamp, await to_thread.run_sync(self._load, folder)
                self._known[folder] = known
            return known[1]


def _stamp(folder: str) -> Stamp:
    try:
        found = (Path(folder) / "tokenizer.json").stat()
    except OSError as fault:
        raise EngineError(f"{folder} holds no usable tokenizer: {fault.strerror}") from None
    return found.st_mtime_ns, found.st_size
