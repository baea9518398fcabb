"""One host of a pool, from its start to its end.

STARTING -> READY -> DRAINING -> ended
Told to go, it is shown DRAINING; once every gateway knows, nothing new comes, and it lets what runs
there end. Without being told it ends when it fails: it dies, or doesn't answer, or can't start.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import structlog
from msgspec import MsgspecError, structs

from engines.api import Stats
from runtime.config.sections import HostSettings
from runtime.host.process import HostSpec
from runtime.node import probe
from runtime.node.child import Child, StartFailed, ending
from runtime.node.departed import Departed
from runtime.node.machine import resident_bytes
from runtime.node_wire import HostState, HostView

log = structlog.get_logger()

MAX_MISSES = 2  # health checks in a row without an answer: it hangs


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a host's life needs of its node."""

    env: dict[str, str]
    changed: Callable[[], None]  # a view is new
    acknowledged: Callable[[], Awaitable[object]]  # by all gateways: what is shown now
    departed: Departed = field(default_factory=Departed)


class HostLife:
    """A host that is kept. `view` is what the node tells of it."""

    def __init__(
        self, spec: HostSpec, starts: int, settings: HostSettings, around: Surroundings
    ) -> None:
        self.spec = spec
        self._settings = settings
        self._around = around
        self._child: Child | None = None
        self._told = asyncio.Event()  # to go
        self._killer: asyncio.TimerHandle | None = None
        self.began = time.monotonic()
        self.ready_at: float | None = None  # monotonic
        self.retirement = ""  # why its engine wants to be replaced, as it said last
        self.counters: Stats | None = None  # as it told them last; at its end all of them
        self.view = HostView(
            id=spec.id,
            model=spec.model,
            state=HostState.STARTING,
            starts=starts,
            since=time.time(),
        )

    @property
    def state(self) -> HostState:
        """Where it is in its life."""
        return self.view.state

    @property
    def stopped(self) -> int:
        """Requests that a check of their pages stopped here."""
        counted = self.counters.integrity_aborts if self.counters else 0
        return max(self.view.integrity_aborts, counted)

    async def run(self) -> str:
        """Live. Returns why it failed, or "" when it ended as it was told to."""
        try:
            child = self._child = await Child.spawn(self.spec, self._around.env)
        except StartFailed as fault:
            return str(fault)
        try:
            reason = await self._start(child)
            if self.ready_at is not None:
                reason = await self._serve(child)
            return reason
        finally:
            if self._killer:
                self._killer.cancel()
            await child.clean_up()
            if self.ready_at is not None:
                self.counters = await child.last_counters() or self.counters
            if self.counters:
                self._around.departed.note(self.view, self.counters, time.monotonic())

    def retire(self, reason: str, limit_s: float) -> None:
        """Take no new request, and end once what runs has ended, or is `limit_s` old.

        Told twice, the earlier end counts. One that still starts ends at once.
        """
        if self.state is not HostState.DRAINING:
            self._show(HostState.DRAINING, reason=reason)
            self._told.set()
        due = asyncio.get_running_loop().time() + limit_s
        if self.ready_at is None:
            self._kill()
        elif self._killer is None or due < self._killer.when():
            if self._killer:
                self._killer.cancel()
            self._killer = asyncio.get_running_loop().call_at(due, self._kill)

    def _kill(self) -> None:
        if self._child:
            self._child.kill()

    async def _start(self, child: Child) -> str:
        if self._told.is_set():
            return ""
        try:
            answer = await child.ready(self._settings.start_s)
        except StartFailed as fault:
            return "" if self._told.is_set() else str(fault)
        if self._told.is_set():
            return ""
        self.ready_at = time.monotonic()
        took_s = round(self.ready_at - self.began, 2)
        log.info("host_ready", host=self.spec.id, model=self.spec.model, pid=child.pid, s=took_s)
        rss = resident_bytes(child.pid)
        self._show(
            HostState.READY,
            socket=self.spec.socket,
            port=answer.port,
            pid=child.pid,
            rss_bytes=rss,
        )
        return ""

    async def _serve(self, child: Child) -> str:
        """Serve until told to go, and lose nothing then. Returns why it failed, or ""."""
        ends = asyncio.ensure_future(child.exited()), asyncio.ensure_future(self._hung())
        try:
            if reason := await _until(ends, self._told.wait()):
                return reason
            # no gateway sends anything new before what runs is given its time
            how = await _until(ends, self._around.acknowledged())
            if not how:
                child.drain()
                how = await _until(ends)
            log.info("host_retired", host=self.spec.id, reason=self.view.reason, end=how)
            return ""
        finally:
            for end in ends:
                end.cancel()

    async def _hung(self) -> None:
        """Watches its health; returns once it has missed too many checks in a row."""
        missed, settings = 0, self._settings
        # no connection is kept: a host that drains waits until nobody holds one
        async with probe.client(
            self.spec.socket, settings.health_timeout_s, keep_alive=False
        ) as client:
            while missed < MAX_MISSES:
                await asyncio.sleep(settings.health_every_s)
                found = None
                try:
                    found = await probe.health(client)
                except httpx.ConnectError:
                    if self._told.is_set():
                        continue  # it has almost ended: its socket's name is gone
                except (httpx.HTTPError, MsgspecError):
                    pass
                missed = 0 if found else missed + 1
                if found:
                    self._measure(found)
                    with suppress(httpx.HTTPError, MsgspecError):
                        self.counters = await probe.stats(client)

    def _measure(self, found: probe.Health) -> None:
        """New figures are no new version: who wants them asks."""
        rss = resident_bytes(self.view.pid)
        self.view = structs.replace(
            self.view,
            rss_bytes=rss,
            in_flight=found.in_flight,
            integrity_aborts=found.integrity_aborts,
        )
        if found.retirement and not self.retirement:
            self.retirement = found.retirement
            self._around.changed()  # its pool has to decide

    def _show(self, state: HostState, **changes: object) -> None:
        self.view = structs.replace(self.view, state=state, since=time.time(), **changes)
        self._around.changed()


async def _until(
    ends: tuple[asyncio.Future[int], asyncio.Future[None]], *others: Awaitable[object]
) -> str:
    """Wait for the host's end, or for any of the others: how it ended, or "" if it goes on."""
    exited, hung = ends
    waited = [asyncio.ensure_future(other) for other in others]
    every: list[asyncio.Future[Any]] = [exited, hung, *waited]
    try:
        await asyncio.wait(every, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waited:
            task.cancel()
    if exited.done():
        return ending(exited.result())
    return "stopped answering" if hung.done() else ""
