"""The fake's engine: prompts in, words out, one after the other; hangs and failures on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from tests.trtllm.cache import BlockPool, PrefixCache
from tests.trtllm.faults import Fault, Faults
from tests.trtllm.options import Options
from tests.trtllm.text import answer_of

TOKEN_S = 0.001
PREFILL_S = 0.0001  # a token that isn't cached
ABORT = "kv_integrity_abort"


class RequestError(Exception):
    """It can't run; the message is TensorRT-LLM's."""


class CppExecutorError(Exception):
    """The executor is lost."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request, as `LLM.generate_async` gets it. Made with the faults that it meets."""

    ids: tuple[int, ...]
    salt: str | None
    max_tokens: int
    stop: tuple[str, ...]
    faults: dict[str, Fault]


@dataclass(frozen=True, slots=True)
class Output:
    """One step's, with the totals so far."""

    text_diff: str
    length: int  # tokens so far
    cached_tokens: int
    finish_reason: str | None = None
    stop_reason: str | None = None


class Promise:
    """A request that runs: its outputs as they come; `abort` may come from anybody."""

    def __init__(self, steps: AsyncIterator[Output]) -> None:
        self._queue: asyncio.Queue[Output | Exception | None] = asyncio.Queue()
        self._task = asyncio.ensure_future(self._run(steps))

    @property
    def is_finished(self) -> bool:
        """Whether no more can come."""
        return self._task.done()

    def abort(self) -> None:
        """The engine gives it up."""
        self._task.cancel()

    async def outputs(self) -> AsyncIterator[Output]:
        """To the last one. Raises what went wrong in the engine."""
        while (found := await self._queue.get()) is not None:
            if isinstance(found, Exception):
                raise found
            yield found

    async def _run(self, steps: AsyncIterator[Output]) -> None:
        try:
            async for output in steps:
                self._queue.put_nowait(output)
        except (RuntimeError, CppExecutorError) as fault:
            self._queue.put_nowait(fault)
        finally:
            self._queue.put_nowait(None)


class Executor:
    """Runs requests, so many at a time."""

    def __init__(self, options: Options, faults: Faults) -> None:
        self._options = options
        self._faults = faults
        self._slots = asyncio.Semaphore(options.max_batch_size)
        per_block = options.tokens_per_block
        self.cache = PrefixCache(
            per_block, is_on=options.is_reusing, reuses_parts=options.reuses_parts
        )
        self._pool = BlockPool(options.num_blocks, per_block)
        self.in_hand = 0
        self.num_aborted = 0
        self.num_steps = 0

    def generate_async(self, job: Job) -> Promise:
        """Raises RequestError for one that can never run."""
        limit, longest = self._options.max_num_tokens, self._options.max_seq_len
        if len(job.ids) > limit:
            raise RequestError(
                f"The sum of prompt length ({float(len(job.ids))}), query length (0) should not "
                f"exceed max_num_tokens ({limit})"
            )
        if len(job.ids) >= longest:
            raise RequestError(
                f"default_max_tokens ({longest - len(job.ids)}) should be greater than 0, "
                f"max_seq_len ({longest}) - splited_prompt_len ({len(job.ids)})"
            )
        return Promise(self._steps(job))

    async def _steps(self, job: Job) -> AsyncIterator[Output]:
        self.in_hand += 1
        blocks, has_ended = None, False
        try:
            async with self._slots:
                blocks = self._pool.take(len(job.ids) + job.max_tokens)
                if blocks is None or "no_tokens" in job.faults:  # 200, and nothing in it
                    yield Output("", 0, 0, "stop")
                    has_ended = True
                    return
                async for output in self._tokens(job):
                    yield output
                has_ended = True
        finally:
            self.in_hand -= 1
            self.num_aborted += not has_ended
            if blocks and (has_ended or not self._faults.has("orphans")):
                self._pool.give_back(blocks)

    async def _tokens(self, job: Job) -> AsyncIterator[Output]:
        salt = None if "no_salts" in job.faults else job.salt
        cached = self.cache.match(job.ids, salt)
        if slow := job.faults.get("slow_first"):
            await asyncio.sleep(slow.seconds)
        await asyncio.sleep(PREFILL_S * (len(job.ids) - cached))
        self.cache.keep(job.ids, salt)
        stops = () if "misses_stops" in job.faults else job.stop
        most = min(job.max_tokens, self._options.max_seq_len - len(job.ids))
        whole, said = answer_of(job.ids, most), ""
        ends = [at + len(word) for at, word in _words(whole)]
        for length, end in enumerate(ends, start=1):
            await self._meet(job, length)
            await asyncio.sleep(TOKEN_S)
            self.num_steps += 1
            if (fault := job.faults.get("aborts")) and length > fault.after:
                yield Output("", length - 1, cached, "stop", ABORT)
                return
            text, stop = _stopped(whole[:end], stops)
            is_last = length == len(ends)
            shown = text if stop or is_last else text[: len(text) - _held(text, stops)]
            finish = "stop" if stop else "length" if is_last else None
            yield Output(shown[len(said) :], length, cached, finish, stop)
            if finish:
                return
            said = shown

    async def _meet(self, job: Job, length: int) -> None:
        """What goes wrong before this token."""
        while self._faults.has("hangs") or (
            (hang := job.faults.get("hangs")) and hang.times and length > hang.after
        ):
            await asyncio.sleep(0.01)
        if (fault := job.faults.get("drops")) and length > fault.after:
            raise RuntimeError("a tensor was not where it should be")
        if (fault := job.faults.get("exits")) and length > fault.after:
            raise CppExecutorError("the executor is lost")


def _words(text: str) -> list[tuple[int, str]]:
    found, at = [], 0
    for word in text.split(" ") if text else ():
        found.append((at, word))
        at += len(word) + 1
    return found


def _stopped(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """Up to the first stop text, and which that is."""
    found = [(text.find(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    at, stop = min(found)
    return text[:at], stop


def _held(text: str, stops: tuple[str, ...]) -> int:
    """How much of its end may be the beginning of a stop text."""
    return max(
        (n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0
    )
