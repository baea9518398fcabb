"""One server from its start to its end.

STARTING -> READY -> DRAINING -> ended
It is READY once it has answered with a real token, and its guard, if there is to be one, has
counted the step; if that saw a violation by then, it is DRAINING at once. It serves until it is
told to go, or until `watch` finds that it must be replaced. Nothing of it is left when `run`
returns.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import structlog

from engines.trtllm.state import State, read_state
from runtime.node.child import StartFailed
from runtime.rundir import private
from runtime.trt.child import Child
from runtime.trt.feed import Feed
from runtime.trt.plan import Plan
from runtime.trt.said import Said
from runtime.trt.token import Asker
from runtime.trt.view import TrtState
from runtime.trt.watch import End, Heard, Patience, Watch

log = structlog.get_logger()

ASK_AGAIN_S = 0.5  # while it starts
LOOK_S = 0.02  # at the guard's files: a violation has to be told before much more is answered
T = TypeVar("T")


class Ended(NamedTuple):
    """How a life ended. `reason` is "" where it was told to."""

    reason: str
    served_s: float
    is_retired: bool = False  # it was let go in order, for what its guard saw


class Stop:
    """What an operator has said: to go, and then, perhaps, at once."""

    def __init__(self) -> None:
        self.told = asyncio.Event()
        self.at_once = asyncio.Event()

    def say(self) -> None:
        """Once: to go. Twice: at once."""
        (self.at_once if self.told.is_set() else self.told).set()


class Life:
    """One start of the plan's server; `show` is told of each change."""

    def __init__(
        self, plan: Plan, patience: Patience, stop: Stop, show: Callable[..., None]
    ) -> None:
        self.feed: Feed | None = None  # while it is in service
        self.said = Said(plan.secrets)
        self._plan = plan
        self._patience = patience
        self._stop = stop
        self._show = show
        self._watch: Watch | None = None
        self._guards = plan.guards and plan.guards / secrets.token_hex(8)
        self._asker = Asker(f"{plan.bind.url}/v1", plan.name, secrets.token_hex(16))

    async def run(self) -> Ended:
        """Live. Never raises for what a server does."""
        try:
            child = await self._spawn()
            try:
                return await self._live(child)
            finally:
                await child.clean_up()
        except StartFailed as fault:
            return Ended(str(fault), 0.0)
        finally:
            await self._asker.aclose()
            if self._guards:
                shutil.rmtree(self._guards, ignore_errors=True)

    async def _spawn(self) -> Child:
        """Raises StartFailed."""
        if self._guards:
            try:
                private(self._guards)
            except OSError as fault:
                raise StartFailed(f"{self._guards} can't be made: {fault.strerror}") from None
        return await Child.spawn(
            self._plan.command(self._guards), self._plan.warden_env, self._heard
        )

    async def _live(self, child: Child) -> Ended:
        self._show(TrtState.STARTING, pid=child.pid)
        began = time.monotonic()
        try:
            guard = await self._first_token(child)
        except StartFailed as fault:
            return Ended("" if self._stop.told.is_set() else str(fault), 0.0)
        if self._stop.told.is_set():
            return Ended("", 0.0)
        ready_at = time.monotonic()
        self._watch = Watch(self._patience, guard, ready_at)
        if guard and self._guards:
            self.feed = Feed(self._guards, guard)
        is_sound = self._watch.looked(guard) is None  # nothing was wrong before its first token
        if is_sound:
            start_s = round(ready_at - began, 2)
            log.info("trt_ready", model=self._plan.model, pid=child.pid, s=start_s)
            self._show(TrtState.READY, token_at=time.time())
        try:
            end = await self._serve(child)
        finally:
            if self.feed:
                self.feed.end()
        return Ended(end.reason, time.monotonic() - ready_at, end.drains and is_sound)

    async def _first_token(self, child: Child) -> State | None:
        """Ask until it answers, and see to it that its guard counts. Raises StartFailed."""
        why = "nothing was asked"
        try:
            async with asyncio.timeout(self._patience.start_s):
                while not self._stop.told.is_set():
                    answer = await self._or_ended(child, self._asker.ask(self._patience.within_s))
                    self.said.may_quote |= answer.is_reached
                    if answer.heard is Heard.TOKEN:
                        return self._counting_guard()
                    why = answer.reason
                    await self._or_ended(child, asyncio.sleep(ASK_AGAIN_S))
        except TimeoutError:
            raise StartFailed(
                f"no token {self._patience.start_s:g} s after its start: {why}"
            ) from None
        return None

    async def _or_ended(self, child: Child, work: Awaitable[T]) -> T:
        """Do it unless the server ends meanwhile, or is to. Raises StartFailed."""
        working = asyncio.ensure_future(work)
        ended = asyncio.ensure_future(child.ended())
        told = asyncio.ensure_future(self._stop.told.wait())
        try:
            await asyncio.wait((working, ended, told), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            if told.done():
                raise StartFailed("it was told to stop")
            raise StartFailed(f"{ended.result()} before a token came{self._last_words()}")
        finally:
            for task in (working, ended, told):
                task.cancel()

    def _counting_guard(self) -> State | None:
        """Raises StartFailed where there is to be a guard and it doesn't watch."""
        if not self._guards:
            return None
        state = read_state(self._guards)
        if state is None:
            raise StartFailed(
                "it answers, and no guard has begun in it; the serve YAML names the guard, and "
                "PYTHONPATH its folder: see `bulkhead trt render`"
            )
        if state.is_poisoned or not state.steps:
            what = "has failed" if state.is_poisoned else "counts no step"
            raise StartFailed(f"it answers, and its guard {what}")
        return state

    async def _serve(self, child: Child) -> End:
        """Until it must end: `reason` is "" where it was told to."""
        tasks: dict[asyncio.Future[Any], Callable[[Any], End]] = {
            asyncio.ensure_future(child.ended()): lambda how: End(f"{how}{self._last_words()}"),
            asyncio.ensure_future(self._look()): lambda end: end,
            asyncio.ensure_future(self._ask()): lambda end: end,
            asyncio.ensure_future(self._stop.told.wait()): lambda _: End("", drains=True),
        }
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            end = next(read(task.result()) for task, read in tasks.items() if task.done())
        finally:
            for task in tasks:
                task.cancel()
        if end.drains:
            self._show(TrtState.DRAINING, reason=end.reason)
            await self._drain(child)
        return end

    async def _drain(self, child: Child) -> None:
        """Let what runs end, for as long as that may take. It is watched to the last."""
        if self.feed:
            self.feed.leave()  # nobody may be sent here any more
        child.end()
        blinded = asyncio.ensure_future(self._blinded())
        ended = asyncio.ensure_future(child.ended())
        hurry = asyncio.ensure_future(self._stop.at_once.wait())
        tasks = (blinded, ended, hurry)
        await asyncio.wait(
            tasks, timeout=self._patience.drain_s, return_when=asyncio.FIRST_COMPLETED
        )
        how = f"was killed: {blinded.result() if blinded.done() else 'its time was over'}"
        how = ended.result() if ended.done() else how
        log.info("trt_drained", model=self._plan.model, pid=child.pid, end=how)
        for task in tasks:
            task.cancel()

    async def _look(self) -> End:
        """At the guard; returns once that must be the end."""
        assert self._watch
        while self.feed:
            self._news(self.feed)
            if end := self._watch.looked(self.feed.state):
                return end
            await asyncio.sleep(LOOK_S)
        await asyncio.Event().wait()
        raise AssertionError

    async def _blinded(self) -> str:
        """Tells of what the guard sees while answers end; returns once it doesn't watch them."""
        assert self._watch
        while self.feed:
            self._news(self.feed)
            end = self._watch.looked(self.feed.state)
            if end and not end.drains:
                return end.reason
            await asyncio.sleep(LOOK_S)
        await asyncio.Event().wait()
        raise AssertionError

    def _news(self, feed: Feed) -> None:
        for violation in feed.look():
            log.error("guard_violation", model=self._plan.model, violation=violation)

    async def _ask(self) -> End:
        """For a token, now and then; returns once what comes of it must be the end."""
        assert self._watch
        while True:
            await asyncio.sleep(self._watch.wait_s)
            since = self._guard()
            answer = await self._asker.ask(self._patience.within_s)
            if end := self._watch.asked(answer, since, self._guard(), time.monotonic()):
                return end
            if answer.heard is Heard.TOKEN:
                self._show(TrtState.READY, token_at=time.time())
            elif self._watch.misses:
                log.warning("trt_missed", model=self._plan.model, reason=answer.reason)

    def _guard(self) -> State | None:
        return read_state(self._guards) if self._guards else None

    def _heard(self, data: bytes) -> None:
        for line in self.said.heard(data):
            getattr(log, line.level)("trt_says", model=self._plan.model, line=line.text)

    def _last_words(self) -> str:
        words = self.said.complaint or self.said.last
        return f"; it said: {words}" if words else ""
