"""Hears what the guards in attached servers see, and ends the requests that they name.

A task for each place whose server has a guard that is told of: it follows the launcher's stream of
lines, for as long as the place is there, and judges after each. See `trust` for what lines mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import structlog

from gateway.catalog.catalog import Server
from gateway.relay.attached import AttachedServers
from gateway.relay.place import Place
from gateway.relay.placement import Placement
from gateway.relay.transport import Broken, ConnectFailed, Reply, Transport
from gateway.relay.trust import SILENT_S, BadLine, Counters, Trust, meaning
from runtime.config.tls import ClientTls
from runtime.tls.contexts import Followed

log = structlog.get_logger()

TICK_S = 0.25
RETRY_S = 0.5
CONNECT_S = 2.0
STALL_S = 1.0  # between two looks at a guard: this process stood still
MAX_LINE_BYTES = 64 * 1024


class Unheard(Exception):
    """Nothing can be heard of a guard just now. Says why."""


class Guards:
    """Follows the guards of all servers that are attached."""

    def __init__(
        self, attached: AttachedServers, placement: Placement, tick_s: float = TICK_S
    ) -> None:
        self._attached = attached
        self._placement = placement
        self._tick_s = tick_s
        self._followed: dict[tuple[Place, Trust], _Followed] = {}

    async def follow(self) -> None:
        """Until cancelled."""
        try:
            while True:
                wanted = {
                    (place, place.guard): (deployment.id, place.server.guard_url)
                    for deployment, place in self._attached.each()
                    if place.guard is not None and place.server is not None
                }
                self._let_go(wanted)
                for (place, trust), (model, url) in wanted.items():
                    if (place, trust) not in self._followed:
                        follower = Follower(model, url, place, trust, self)
                        task = asyncio.ensure_future(follower.run())
                        self._followed[place, trust] = _Followed(model, url, task)
                await asyncio.sleep(self._tick_s)
        finally:
            for one in self._followed.values():
                one.task.cancel()

    def _let_go(self, wanted: Mapping[tuple[Place, Trust], tuple[str, str]]) -> None:
        """Guards of servers that are attached no more, once the last request there has ended."""
        for key, one in list(self._followed.items()):
            place, trust = key
            is_wanted = wanted.get(key, ("", ""))[1] == one.url
            if one.task.done() or not (is_wanted or (trust.flights and key not in wanted)):
                one.task.cancel()
                del self._followed[key]
                self._attached.troubles.guard(one.model, place.base_url, "")

    def saw(self, model: str, place: Place, reason: str) -> None:
        """Remember what a guard saw last."""
        self._attached.troubles.failed(model, place.base_url, reason)

    def judged(self, model: str, place: Place, trust: Trust, before: str) -> None:
        """Tell of a change: a place that takes requests again, or no more."""
        if trust.last is not None or trust.trouble:  # else it was just begun
            self._attached.troubles.guard(model, place.base_url, trust.fault)
        if before and not trust.fault:
            self._placement.line(model).serve()


class _Followed(NamedTuple):
    model: str
    url: str
    task: asyncio.Task[None]


class Follower:
    """Follows one server's guard, for the requests of one model."""

    def __init__(self, model: str, url: str, place: Place, trust: Trust, guards: Guards) -> None:
        self._model = model
        self._url = url
        self._place = place
        self._trust = trust
        self._guards = guards
        self._fault = trust.fault  # as it was judged last
        self._unwatched = trust.unwatched  # what had been ended by then
        self._judged_at = asyncio.get_running_loop().time()

    async def run(self) -> None:
        """Until cancelled; then nobody is trusted."""
        listening = asyncio.ensure_future(self._listen())
        try:
            while True:
                self._judge()
                await asyncio.sleep(TICK_S)
        finally:
            listening.cancel()
            self._trust.fault = "its guard isn't followed"

    async def _listen(self) -> None:
        while True:
            try:
                await self._hear()
            except Unheard as fault:
                self._trust.trouble = str(fault)
            except Exception as fault:  # a bug of ours; who stops following trusts nobody
                log.exception("guard_follower_broke", model=self._model)
                self._trust.trouble = type(fault).__name__
            self._judge()
            await asyncio.sleep(RETRY_S)

    async def _hear(self) -> None:
        """One stream, to its end or until it tells nothing. Raises Unheard."""
        server = self._place.server
        assert server is not None
        headers = {"authorization": f"Bearer {server.guard_key}"} if server.guard_key else {}
        transport = _transport(server)
        try:
            async with asyncio.timeout(SILENT_S) as patience:
                async with transport.send("GET", self._events(), headers, None) as reply:
                    if reply.status != 200:
                        raise Unheard(_refused(reply.status))
                    async with aclosing(_lines(reply)) as lines:
                        async for line in lines:
                            if self._take(line):
                                patience.reschedule(asyncio.get_running_loop().time() + SILENT_S)
            self._trust.has_ended = True
            raise Unheard("its stream ended")
        except TimeoutError:
            raise Unheard("it is silent") from None
        except ConnectFailed as fault:
            raise Unheard(f"no connection ({fault})") from None
        except (Broken, BadLine) as fault:
            raise Unheard(str(fault)) from None
        finally:
            await transport.aclose()

    def _events(self) -> str:
        """From where we left off, if we have heard of that life of the server before."""
        trust = self._trust
        query = urlencode({"boot": trust.boot, "after": trust.seq}) if trust.boot else ""
        return f"{self._url}/events{'?' if query else ''}{query}"

    def _take(self, line: bytes) -> bool:
        """Whether it was a line of counters: these alone show that the guard watches."""
        found = meaning(line)
        if isinstance(found, Counters):
            was_poisoned = self._trust.last is not None and self._trust.last.poisoned
            self._trust.counted(found, self._place.asked_at, asyncio.get_running_loop().time())
            if found.poisoned and not was_poisoned:
                log.error("guard_poisoned", model=self._model, url=self._place.base_url)
            self._judge()
            return True
        if found is not None:
            stopped = self._trust.violated(found)
            log.error(
                "guard_violation",
                model=self._model,
                url=self._place.base_url,
                kind=str(found.get("kind", ""))[:64],
                stopped=stopped,
            )
            reason = "its guard saw a request read a block that wasn't its own"
            self._guards.saw(self._model, self._place, reason)
        return False

    def _judge(self) -> None:
        now, trust = asyncio.get_running_loop().time(), self._trust
        if now - self._judged_at > STALL_S:
            trust.stood_still(now - self._judged_at, now)
        self._judged_at = now
        before, self._fault = self._fault, trust.judge(now)
        stopped, self._unwatched = trust.unwatched - self._unwatched, trust.unwatched
        if stopped:
            url = self._place.base_url
            log.error("guard_lost", model=self._model, url=url, reason=trust.fault, stopped=stopped)
        self._guards.judged(self._model, self._place, trust, before)


async def _lines(reply: Reply) -> AsyncGenerator[bytes]:
    """Its lines, however they are cut. Raises Broken, and BadLine for one without an end."""
    begun = bytearray()
    while (chunk := await reply.chunk()) is not None:
        *whole, rest = chunk.split(b"\n")
        for piece in whole:
            begun += piece
            if line := bytes(begun).strip():
                yield line
            begun.clear()
        begun += rest
        if len(begun) > MAX_LINE_BYTES:
            raise BadLine(f"a line of more than {MAX_LINE_BYTES} bytes")


def _transport(server: Server) -> Transport:
    tls = Followed(server.tls, Path("/")) if server.tls != ClientTls() else None
    return Transport(connect_s=CONNECT_S, tls=tls)


def _refused(status: int) -> str:
    if status in (401, 403):
        return f"it answers {status}: the model's guard_secret isn't its own"
    return f"it answers {status}"
