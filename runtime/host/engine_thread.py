"""Runs one engine in a thread of its own and hands its outputs to asyncio.

Commands wait in a deque until the running step ends; outputs of a step cross in one call. The
engine never waits for a client: each answer is bounded by its `max_tokens`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any, TypeVar

import structlog

from engines.api import (
    Engine,
    EngineError,
    EngineFailed,
    FinishReason,
    KvIntegrityAbort,
    Output,
    PageMap,
    Request,
    RequestRefused,
    Stats,
)

log = structlog.get_logger()

T = TypeVar("T")
Command = Callable[[Engine], None]
TEND_S = 1.0  # how often an idle engine is given a moment to look after itself
GONE = "the engine has failed and is being replaced"


class Answers:
    """The outputs of one request on their way to its one reader, both in the same loop."""

    def __init__(self) -> None:
        self._come: list[Output] = []
        self._reader: asyncio.Future[None] | None = None

    def put(self, output: Output) -> None:
        """Add one, and wake the reader if it waits."""
        self._come.append(output)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def take(self) -> list[Output]:
        """All that have come since the last time; waits for the first."""
        if not self._come:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        taken, self._come = self._come, []
        return taken


class EngineThread:
    """One engine, one thread, many answers. `failed` is set once the engine can't go on.

    `retirement` is why the engine wants to be replaced, as of its last step; "" while it doesn't.
    """

    def __init__(self, build: Callable[[], Engine]) -> None:
        self._build = build
        self._commands: deque[tuple[Command, Future[Any] | None]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._is_over = False  # no command will ever run again
        self._answers: dict[str, Answers] = {}
        self._takers: dict[str, Answers] = {}  # the same, as the engine's thread knows them
        self._unbegun: set[str] = set()  # of them, those that the engine hasn't admitted
        # with what is bound for log lines: which host and which model
        context = copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._run,), name="engine", daemon=True
        )
        self.failed = asyncio.Event()
        self.retirement = ""
        self.integrity_aborts = 0  # requests that a check of their pages has stopped

    async def start(self) -> Engine:
        """Build the engine in its thread and return it (only its constants may be read)."""
        self._loop = asyncio.get_running_loop()
        self._built: Future[Engine] = Future()
        self._thread.start()
        return await asyncio.wrap_future(self._built)

    async def submit(self, request: Request) -> None:
        """Queue a request. Raises RequestRefused, EngineRetiring, or EngineFailed if it is gone."""
        if request.id in self._answers:
            raise RequestRefused(f"request id {request.id!r} is running already")
        answers = self._answers[request.id] = Answers()
        self._unbegun.add(request.id)
        try:
            await self._ask(lambda engine: self._begin(engine, request, answers))
        except BaseException:
            self.abort(request.id)
            raise

    async def outputs(self, request_id: str) -> list[Output]:
        """What has come for a submitted request since it was last asked; waits for the first.

        Nothing follows the one that has `finish`.
        """
        return await self._answers[request_id].take()

    def abort(self, request_id: str) -> None:
        """Stop a request, whatever its phase, and forget it. Ended or unknown ids are fine."""
        self._unbegun.discard(request_id)
        if (answers := self._answers.pop(request_id, None)) is not None:
            self._post(lambda engine: self._end(engine, request_id, answers))

    async def stats(self) -> Stats:
        """The engine's own counters, read between two steps. Raises EngineFailed."""
        return await self._ask(lambda engine: engine.stats())

    async def pages(self) -> PageMap | None:
        """Where its pages are, between two steps; None if it has none. Raises EngineFailed."""
        return await self._ask(lambda engine: engine.pages())

    async def plant(self, fault: Callable[[Engine], str]) -> str:
        """Do something to the engine that no engine should meet. Raises EngineError."""
        done = await self._ask(fault)
        log.warning("fault_planted", done=done)
        return done

    @property
    def in_flight(self) -> int:
        """Answers not yet read to their end."""
        return len(self._answers)

    @property
    def waiting(self) -> int:
        """Of those, the ones that the engine hasn't begun."""
        return len(self._unbegun)

    def close(self) -> None:
        """End the thread after its current step."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def _begin(self, engine: Engine, request: Request, answers: Answers) -> None:
        engine.add(request)
        self._takers[request.id] = answers

    def _end(self, engine: Engine, request_id: str, answers: Answers) -> None:
        if self._takers.get(request_id) is answers:  # else it is over, or never began
            del self._takers[request_id]
            engine.abort(request_id)

    async def _ask(self, call: Callable[[Engine], T]) -> T:
        future: Future[T] = Future()
        self._post(lambda engine: _settle(future, lambda: call(engine)), future)
        return await asyncio.wrap_future(future)

    def _post(self, command: Command, future: Future[Any] | None = None) -> None:
        with self._wake:
            if not self._is_over:
                self._commands.append((command, future))
                self._wake.notify()
                return
        _give_up(future)

    def _run(self) -> None:
        try:
            engine = self._build()
        except BaseException as fault:  # noqa: BLE001 - whatever it is, start() must learn of it
            self._built.set_exception(fault)
            return
        self._built.set_result(engine)
        try:
            self._drive(engine)
        except Exception as fault:
            log.exception("engine_failed")
            self._loop.call_soon_threadsafe(self._fail, str(fault))
        finally:
            with self._wake:
                self._is_over = True
            for _, future in self._commands:
                _give_up(future)
            engine.close()

    def _drive(self, engine: Engine) -> None:
        tended = time.monotonic()
        while True:
            with self._wake:
                if not (self._commands or self._closing or engine.has_work()):
                    self._wake.wait(TEND_S)
                if self._closing:
                    return
                due = len(self._commands)
            if time.monotonic() - tended >= TEND_S:  # also if somebody keeps asking for its pages
                engine.tend()
                self.retirement = engine.retirement
                tended = time.monotonic()
            for _ in range(due):
                command, _ = self._commands.popleft()
                command(engine)
            if engine.has_work():
                outputs = engine.step()
                self.retirement = engine.retirement
                # Bound here to who asked: an id may mean another request once this arrives.
                if told := [(output, self._taker(output)) for output in outputs]:
                    self._loop.call_soon_threadsafe(self._deliver, told)

    def _taker(self, output: Output) -> Answers | None:
        if output.finish is None:
            return self._takers.get(output.request_id)
        return self._takers.pop(output.request_id, None)

    def _deliver(self, told: list[tuple[Output, Answers | None]]) -> None:
        for output, answers in told:
            if output.error is not None:
                self.integrity_aborts += isinstance(output.error, KvIntegrityAbort)
                log.error("request_failed", request=output.request_id, code=output.error.code)
            if output.cached_tokens is not None:
                self._unbegun.discard(output.request_id)
            if answers is not None:  # else aborted meanwhile
                answers.put(output)

    def _fail(self, reason: str) -> None:
        self.failed.set()
        error: EngineError = EngineFailed(reason)
        for request_id, answers in self._answers.items():
            answers.put(Output(request_id, finish=FinishReason.ERROR, error=error))


def _settle(future: Future[T], call: Callable[[], T]) -> None:
    """Run `call` and put its result or its error into `future`; a bug is raised as well."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call())
    except EngineError as fault:
        future.set_exception(fault)
    except Exception as fault:
        future.set_exception(EngineFailed(str(fault)))
        raise


def _give_up(future: Future[Any] | None) -> None:
    """Tell who waits for a command that it will never run."""
    if future is not None and future.set_running_or_notify_cancel():
        future.set_exception(EngineFailed(GONE))
