"""Sends alerts to the operator's webhook, beside the requests and never in their way.

Each gateway process looks for alerts that are due; the store says which of them sends one. What a
receiver doesn't accept with a 2xx in time is tried again for a day; redirects are not followed.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

import httpx
import structlog
from anyio import to_thread

from gateway.budgets.outbox import Waiting, claim, delivered, due, failed
from gateway.budgets.webhook import Alert, Hook, body_of, headers_of
from gateway.clock import Clock
from gateway.door import Door
from gateway.ids import new_id
from gateway.store.address import Database
from gateway.store.errors import StoreUnavailable
from gateway.store.reader import read_in_thread
from gateway.store.writer import Job, Writer

T = TypeVar("T")

log = structlog.get_logger()

LOOK_EVERY_S = 1.0
DEADLINE_S = 10.0  # of one attempt, its connecting included


class AlertSender:
    """Sends what is due, as long as there is a hook to send it to."""

    def __init__(
        self,
        database: Database,
        writer: Writer,
        door: Door,
        clock: Clock,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._database = database
        self._writer = writer
        self._door = door
        self._clock = clock
        self._deadline_s = deadline_s
        self._http: httpx.AsyncClient | None = None

    async def follow(self, hook: Callable[[], Hook | None]) -> None:
        """Look again and again, until cancelled. `hook` is asked each time."""
        try:
            while True:
                await asyncio.sleep(LOOK_EVERY_S)
                try:
                    await self.look(hook())
                except StoreUnavailable:
                    continue  # it's looked at again; requests tell of it
                except Exception:
                    log.exception("alerts_failed")
        finally:
            await self.aclose()

    async def look(self, hook: Hook | None) -> None:
        """Send what is due now. Raises StoreUnavailable."""
        if hook is None:
            return
        now_us = self._clock.now_us()
        waiting = await read_in_thread(self._database, lambda db: due(db, now_us))
        sent = [self._send(hook, one) for one in waiting]
        faults = await asyncio.gather(*sent, return_exceptions=True)  # each to its end
        for fault in filter(None, faults):
            raise fault

    async def aclose(self) -> None:
        """Close what connections there are."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def _send(self, hook: Hook, waiting: Waiting) -> None:
        now_us = self._clock.now_us()
        alert: Alert | None = await self._write(lambda db: claim(db, waiting, now_us))
        if alert is None:
            return
        tell = log.bind(alert=alert.id, to=urlsplit(hook.url).hostname, attempts=alert.attempts)
        fault = await self._post(hook, alert)
        if fault is None:
            await self._write(partial(delivered, waiting=waiting, now_us=self._clock.now_us()))
            tell.info("alert_sent")
        else:
            await self._write(partial(failed, waiting=waiting, now_us=self._clock.now_us()))
            tell.warning("alert_not_sent", fault=fault, then="it is tried again for a day")

    async def _post(self, hook: Hook, alert: Alert) -> str | None:
        """What went wrong, in words that tell nothing of the URL but its host."""
        http = await self._client()
        body = body_of(alert, hook.source)
        headers = headers_of(alert.id, body, hook.secret, self._clock.now_us() // 1_000_000)
        try:
            async with (
                asyncio.timeout(self._deadline_s),
                http.stream("POST", hook.url, content=body, headers=headers) as answer,
            ):
                return None if answer.is_success else f"answered {answer.status_code}"
        except TimeoutError:
            return f"no answer within {self._deadline_s:g} s"
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as fault:
            return type(fault).__name__

    async def _client(self) -> httpx.AsyncClient:
        """Made by the first alert: few installations send any."""
        if self._http is None:
            self._http = await to_thread.run_sync(_new_client)
        return self._http

    async def _write(self, job: Job[T]) -> T:
        """Run a job; waits while the store is being restored."""
        name = new_id("alert")
        await self._door.enter(name)
        try:
            return await self._writer.run(job)
        finally:
            self._door.leave(name)


def _new_client() -> httpx.AsyncClient:
    return httpx.AsyncClient(
        verify=ssl.create_default_context(),
        follow_redirects=False,
        trust_env=False,
        timeout=DEADLINE_S,
    )
