"""Keeps one server: starts it, has it watched, and starts it again when it must be replaced.

It gives up never: what failed often in a row is tried seldom, as a node does with its hosts.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import structlog
from msgspec import convert, structs

from runtime.config.sections import HostSettings
from runtime.node.failures import Failures
from runtime.trt.feed import Feed
from runtime.trt.life import Ended, Life, Stop
from runtime.trt.notify import Notifier
from runtime.trt.plan import Plan
from runtime.trt.view import GuardView, TrtState, View
from runtime.trt.watch import Patience

log = structlog.get_logger()


class Launcher:
    """One server, as often as it takes. `settings` say how long it waits between two."""

    def __init__(
        self, plan: Plan, patience: Patience, settings: HostSettings, notifier: Notifier
    ) -> None:
        self.stop = Stop()
        self._plan = plan
        self._patience = patience
        self._settings = settings
        self._notifier = notifier
        self._failures = Failures()
        self._life: Life | None = None
        self._view = View(
            model=plan.model, url=plan.bind.url, state=TrtState.STARTING, since=time.time()
        )

    async def run(self) -> None:
        """Until it is told to stop."""
        beating = asyncio.ensure_future(self._beat())
        try:
            while not self.stop.told.is_set():
                await self._wait()
                if not self.stop.told.is_set():
                    await self._live()
        finally:
            beating.cancel()
            if self._plan.guards:
                with suppress(OSError):
                    self._plan.guards.rmdir()
            self._show(TrtState.STOPPED, pid=0)

    def view(self) -> View:
        """How it does."""
        feed, life = self.feed(), self._life
        state = feed.state if feed and not feed.is_over else None
        guard = convert(state.told(), type=GuardView) if state else None
        return structs.replace(self._view, guard=guard, said=life.said.complaint if life else "")

    def feed(self) -> Feed | None:
        """What its guard tells; None while none is in service."""
        return self._life.feed if self._life else None

    async def _live(self) -> None:
        self._show(TrtState.STARTING, starts=self._view.starts + 1)
        log.info("trt_starting", model=self._plan.model, starts=self._view.starts)
        self._life = Life(self._plan, self._patience, self.stop, self._show)
        ended = await self._life.run()
        if not self.stop.told.is_set():
            self._note(ended)

    def _note(self, ended: Ended) -> None:
        """It ended by itself: whether, and for how long, the next start must wait."""
        now, failures = time.monotonic(), self._failures
        if not ended.is_retired:
            failures.note(ended.reason, ended.served_s, now, self._settings)
        else:
            failures.note_retirement(ended.reason, ended.served_s, now, self._settings)
        wait_s = max(0.0, failures.retry_at - now)
        state = TrtState.FAILED if failures.has_failed else TrtState.WAITING
        self._show(
            state,
            reason=ended.reason,
            pid=0,
            failures=failures.count,
            retry_at=time.time() + wait_s,
        )
        log.error(
            "trt_ended",
            model=self._plan.model,
            reason=ended.reason,
            failures=failures.count,
            retry_s=round(wait_s, 2),
        )

    async def _wait(self) -> None:
        """Until it may be started."""
        while self._failures.holds_back(time.monotonic()):
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, self._failures.retry_at - time.monotonic())):
                    await self.stop.told.wait()
                    return

    def _show(self, state: TrtState, **changes: object) -> None:
        is_new = state is not self._view.state
        since = time.time() if is_new else self._view.since
        self._view = structs.replace(self._view, state=state, since=since, **changes)
        if is_new:
            self._tell(state, self._view.reason)

    def _tell(self, state: TrtState, reason: str) -> None:
        if state is TrtState.READY:
            self._notifier.ready()
        elif self.stop.told.is_set():
            self._notifier.stopping()
        is_well = state is TrtState.READY or not reason
        self._notifier.status(state if is_well else f"{state}: {reason}")

    async def _beat(self) -> None:
        while self._notifier.beat_s:
            self._notifier.beat()
            await asyncio.sleep(self._notifier.beat_s)
