"""One model's host: started, watched, and started again when it dies.

STARTING -> READY -> DRAINING -> STOPPED
    ^         |
    +- WAITING (backoff) <- died, hung, or failed to start
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from enum import StrEnum

import httpx
import structlog
from msgspec import Struct, structs

from runtime import probe
from runtime.child import Child, StartFailed
from runtime.host import HostSpec
from runtime.scaling import backoff_s, failures_after
from runtime.sections import HostSettings

log = structlog.get_logger()


class HostState(StrEnum):
    """Where a host is in its life."""

    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"
    DRAINING = "draining"
    STOPPED = "stopped"


class HostView(Struct, frozen=True, kw_only=True):
    """A host as the node tells of it. `socket` may be used while the state is READY."""

    id: str
    model: str
    state: HostState
    socket: str = ""
    pid: int = 0
    starts: int = 0
    reason: str = ""  # why the last one ended


class Pool:
    """Keeps one host of one model alive. `changed` is called after every change of `view`."""

    def __init__(
        self,
        spec: Callable[[int], HostSpec],
        env: dict[str, str],
        settings: HostSettings,
        changed: Callable[[], None],
    ) -> None:
        self._spec = spec
        self._env = env
        self._settings = settings
        self._changed = changed
        self._child: Child | None = None
        self._starts = 0
        self._failures = 0
        self._task: asyncio.Task[None] | None = None
        first = spec(1)
        self.view = HostView(id=first.id, model=first.model, state=HostState.STARTING)

    def start(self) -> None:
        """Begin keeping a host."""
        self._task = asyncio.create_task(self._keep(), name=f"pool {self.view.model}")

    async def stop(self, drain_s: float) -> None:
        """Drain the host and stop keeping it."""
        child, self._child = self._child, None
        self._show(HostState.DRAINING)
        if self._task:
            self._task.cancel()
            await asyncio.wait((self._task,))
        if child:
            await child.drain(drain_s)
        self._show(HostState.STOPPED)

    async def _keep(self) -> None:
        while True:
            self._starts += 1
            spec = self._spec(self._starts)
            self._show(HostState.STARTING, id=spec.id, starts=self._starts)
            began = time.monotonic()
            try:
                reason = await self._run(spec)
            except Exception as fault:  # a pool that gave up would never come back
                log.exception("pool_failed", host=spec.id)
                reason = type(fault).__name__
            self._failures = failures_after(self._failures, time.monotonic() - began)
            wait_s = backoff_s(
                self._failures, self._settings.backoff_first_s, self._settings.backoff_max_s
            )
            self._show(HostState.WAITING, reason=reason, socket="", pid=0)
            log.warning("host_ended", host=spec.id, reason=reason, restart_in_s=wait_s)
            await asyncio.sleep(wait_s)

    async def _run(self, spec: HostSpec) -> str:
        """One life of a host; returns why it ended."""
        try:
            child = await Child.start(spec, self._env, self._settings.start_s)
        except StartFailed as fault:
            return str(fault)
        self._child = child
        self._show(HostState.READY, socket=spec.socket, pid=child.pid)
        log.info("host_ready", host=spec.id, model=spec.model, pid=child.pid)
        exited = asyncio.ensure_future(child.exited())
        hung = asyncio.ensure_future(self._hung(spec))
        try:
            await asyncio.wait((exited, hung), return_when=asyncio.FIRST_COMPLETED)
            if exited.done():
                child.clean_up()
                return f"exited with {exited.result()}"
            await child.kill()
            return "stopped answering"
        finally:
            exited.cancel()
            hung.cancel()

    async def _hung(self, spec: HostSpec) -> None:
        """Returns once the host has failed two health checks in a row."""
        missed = 0
        async with probe.client(spec.socket, self._settings.health_timeout_s) as client:
            while missed < 2:
                await asyncio.sleep(self._settings.health_every_s)
                try:
                    missed = 0 if await probe.healthy(client) else missed + 1
                except httpx.HTTPError:
                    missed += 1

    def _show(self, state: HostState, **changes: object) -> None:
        self.view = structs.replace(self.view, state=state, **changes)
        self._changed()
