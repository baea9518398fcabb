"""Whether the attached servers answer, found out by asking each for a token now and then.

A server is probed when its circuit breaker has been open for a while, when it answered with no
token, and when nothing has come from it for `probe_every_s` though it has room. A probe that fails
is followed by the next at once, so that a hang is known after a few of them.
"""

from __future__ import annotations

import asyncio
from typing import Literal

import structlog

from gateway.catalog.catalog import Deployment
from gateway.relay.attached import AttachedServers
from gateway.relay.breaker import State
from gateway.relay.extra_fields import salt_of
from gateway.relay.place import Place
from gateway.relay.placement import Placement
from gateway.relay.probe import PROBE_DOMAIN, Bad, Refused, Unreached, ask_for_a_token
from runtime.config.sections import RelaySettings

log = structlog.get_logger()

TICK_S = 0.25
Operation = Literal["chat", "completion"]


class Health:
    """Probes the servers that are attached. `settings` may be others from one tick to the next."""

    def __init__(
        self,
        attached: AttachedServers,
        placement: Placement,
        salt_key: bytes,
        settings: RelaySettings,
        tick_s: float = TICK_S,
    ) -> None:
        self.settings = settings
        self._attached = attached
        self._placement = placement
        self._salt = salt_of(salt_key, PROBE_DOMAIN)
        self._tick_s = tick_s
        self._asked_at: dict[Place, float] = {}
        self._running: set[Place] = set()
        self._failing: set[Place] = set()
        self._takes: dict[Place, Operation] = {}  # what it has answered a probe of

    async def follow(self) -> None:
        """Probe until cancelled."""
        async with asyncio.TaskGroup() as probes:
            while True:
                now, known = asyncio.get_running_loop().time(), list(self._attached.each())
                self._forget({place for _, place in known})
                for deployment, place in known:
                    if place not in self._running and self._is_due(deployment, place, now):
                        self._running.add(place)
                        self._asked_at[place] = now
                        probes.create_task(self._probe(deployment, place))
                await asyncio.sleep(self._tick_s)

    def _forget(self, known: set[Place]) -> None:
        """What is no longer attached isn't probed again."""
        for place in self._asked_at.keys() - known:
            del self._asked_at[place]
            self._takes.pop(place, None)
        self._failing &= known
        self._attached.suspects &= known

    def _is_due(self, deployment: Deployment, place: Place, now: float) -> bool:
        if place.breaker.state is not State.CLOSED:
            is_due = place.breaker.may_probe(now)
            if is_due:
                self._attached.troubles.breaker(deployment.id, place.base_url, State.HALF_OPEN)
            return is_due
        if place in self._attached.suspects:
            self._attached.suspects.discard(place)
            return True
        every_s = self.settings.probe_every_s
        if not every_s or not place.has_room(deployment.max_in_flight):
            return False
        if place in self._failing:
            return True
        known_at = max(place.heard_at, self._asked_at.setdefault(place, now))
        return now - known_at >= every_s

    async def _probe(self, deployment: Deployment, place: Place) -> None:
        model, url, troubles = deployment.id, place.base_url, self._attached.troubles
        clock = asyncio.get_running_loop().time
        asked_at = clock()
        try:
            await self._ask(deployment, place)
        except Unreached as fault:
            troubles.unreachable(model, url, str(fault))
            is_answered = False
        except Bad as fault:
            troubles.failed(model, url, f"a probe: {fault}")
            is_answered = False
        except Exception:  # a bug of ours is no fault of the server's
            log.exception("probe_broke", model=model, url=url)
            is_answered = True
        else:
            troubles.answered(url)
            place.heard_at, is_answered = clock(), True
            place.asked_at = max(place.asked_at, asked_at)
        finally:
            self._running.discard(place)
        (self._failing.discard if is_answered else self._failing.add)(place)
        place.breaker.probed(is_answered=is_answered, now=clock())
        troubles.breaker(model, url, place.breaker.state)
        if is_answered:
            self._placement.line(model).serve()  # it takes requests again

    async def _ask(self, deployment: Deployment, place: Place) -> None:
        """As it was answered before; else as a chat, and as a plain prompt if it takes none."""
        known = self._takes.get(place)
        refusals = []
        for operation in (known,) if known else ("chat", "completion"):
            try:
                await ask_for_a_token(
                    place, deployment, operation, self._salt, self.settings.probe_s
                )
            except Refused as fault:
                refusals.append(str(fault))
            else:
                self._takes[place] = operation
                return
        if known:
            raise Bad(f"it refuses ({refusals[0]}) what it took before")
        self._attached.troubles.failed(
            deployment.id, place.base_url, f"it refuses probes ({', '.join(refusals)})"
        )
