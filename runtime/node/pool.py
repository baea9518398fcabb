"""The hosts of one model, from none to its most: which it needs, which may stop, which have failed.

A pool decides nothing about memory: it asks, and its node lets it start a host. Hosts of an older
recipe serve until newer ones have taken their place.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import structlog

from runtime.host.process import HostSpec
from runtime.node.failures import Failures
from runtime.node.life import HostLife, Surroundings
from runtime.node.scaling import (
    HEALTHY_S,
    Load,
    Slack,
    hosts_needed,
    hosts_to_stop,
    slack_after,
    start_cause,
)
from runtime.node.sharing import Ask, Holder
from runtime.node.terms import Recipe, Terms
from runtime.node_wire import HostState, ModelState, ModelView

log = structlog.get_logger()

IDLE, REPLACED, REMOVED, STOPPING = "idle", "replaced", "removed", "the node stops"
LINGER_S = 5.0  # after a model's removal, for gateways to hear of it


class Kept(NamedTuple):
    """A host, and how it was made."""

    life: HostLife
    recipe: Recipe
    bytes: int
    task: asyncio.Task[None]


class Pool:
    """The hosts of one model. `load` is what its requests need, as last told."""

    def __init__(
        self,
        model: str,
        terms: Terms,
        spec: Callable[[str, Recipe], HostSpec],
        around: Surroundings,
    ) -> None:
        self.model = model
        self.terms = terms
        self.load = Load()
        self.is_removed = False
        self._lingers_until = 0.0
        self._spec = spec
        self._around = around
        self._kept: list[Kept] = []
        self._starts = 0
        self._failures = Failures()
        self._slack: Slack | None = None
        self._asking_since: float | None = None
        self._lacks_memory = False
        self._state = ModelState.COLD  # as last told
        self._retirement = ("", 0.0)  # why a host last asked to be replaced, and when: unix seconds
        self._stopped = 0  # requests, by checks, on hosts that have ended

    def adopt(self, terms: Terms) -> None:
        """Follow a new configuration. Hosts that it makes otherwise will be replaced."""
        recipe = terms.recipe._replace(restarts=self.terms.recipe.restarts)
        self.terms, self.is_removed = terms._replace(recipe=recipe), False
        self._failures.clear()

    def remove(self, now: float) -> None:
        """The configuration has no such model any more: nothing is kept, and this will be over.

        Gateways hear of a deployment when we do, not before: a request that one of them has taken
        in already is owed its answer, by a host that starts for it if there is none.
        """
        self.is_removed = True
        self._lingers_until = now + LINGER_S
        policy = replace(self.terms.policy, min_hosts=0, idle_timeout_s=LINGER_S)
        self.terms = self.terms._replace(policy=policy)

    def is_over(self, now: float) -> bool:
        """Whether the model is gone, and all of its last requests with it."""
        is_last = self.is_removed and now >= self._lingers_until
        return is_last and not (self.load.waiting or self._kept)

    def restart(self) -> None:
        """Forget failures and why hosts asked to be replaced, and have every host replaced."""
        self._retirement, self._stopped = ("", 0.0), 0
        recipe = self.terms.recipe
        self.terms = self.terms._replace(recipe=recipe._replace(restarts=recipe.restarts + 1))
        self._failures.clear()

    @property
    def lives(self) -> list[HostLife]:
        """All its hosts, those that are ending too."""
        return [kept.life for kept in self._kept]

    @property
    def promised(self) -> int:
        """The hosts that it keeps, whatever others need."""
        return 0 if self.terms.misfit else self.terms.policy.min_hosts

    def state(self) -> ModelState:
        """What a request can expect."""
        live = self._live()
        if any(_is_ready(kept) for kept in live):
            return ModelState.READY
        if self._failures.has_failed or self.terms.misfit:
            return ModelState.FAILED
        if self._lacks_memory and not live:
            return ModelState.WAITING_FOR_MEMORY
        return ModelState.STARTING if live or self._needed() else ModelState.COLD

    def view(self) -> ModelView:
        """What the node tells of it."""
        left_s = self._failures.retry_at - time.monotonic()
        return ModelView(
            id=self.model,
            state=self.state(),
            hosts=len(self._live()),
            max_hosts=self.terms.policy.max_hosts,
            waiting=self.load.waiting,
            in_flight=self._in_flight(),
            tokens=self.load.tokens,
            failures=self._failures.count,
            reason=self.terms.misfit or self._failures.reason,
            retry_at=round(time.time() + left_s, 1) if left_s > 0 else 0.0,
            retirement=self._retirement[0],
            retired_at=self._retirement[1],
            stopped=self._stopped,
        )

    def settle(self, now: float) -> None:
        """Stop what is idle, replaced or removed, and tell what time has changed."""
        for kept in self._live():
            if kept.life.ready_at and now - kept.life.ready_at >= HEALTHY_S:
                self._failures.forgive(kept.life.ready_at)
        self._retire_unfit(now)
        self._stop_idle(now)
        self._stop_replaced()
        self._failures.holds_back(now)
        if (state := self.state()) is not self._state:
            self._state = state
            self._around.changed()

    def ask(self, now: float) -> Ask | None:
        """What it wants memory for: one host more, or the one that shall replace an old one."""
        current, outdated = self._by_recipe()
        missing = self._needed() > len(current) + len(outdated)
        replaces = bool(outdated) and all(map(_is_ready, current))
        may_start = not self.terms.misfit and not self._failures.holds_back(now)
        if not (may_start and (missing or replaces)):
            self._asking_since, self._lacks_memory = None, False
            return None
        if self._asking_since is None:
            self._asking_since = now
        return Ask(self.model, self.terms.bytes, self._asking_since, is_optional=not missing)

    def refuse(self, ask: Ask) -> None:
        """There is no memory for what it asked. An old host must go before a new one comes."""
        if ask.is_optional:
            self._retire(self._by_recipe()[1][:1], REPLACED)
        elif not self._lacks_memory:
            self._lacks_memory = True
            log.warning("model_waits_for_memory", model=self.model, bytes=ask.bytes)

    def holders(self, now: float) -> list[Holder]:
        """What its hosts hold; memory is free once a host is gone."""
        surplus = max(0, len(self._live()) - self._needed())
        idle = {kept.life.spec.id for kept in self._least_busy()[:surplus]}
        since = self._slack.since if self._slack else now
        return [
            Holder(
                id=life.spec.id,
                model=self.model,
                bytes=self.terms.bytes if recipe == self.terms.recipe else size,
                since=life.ready_at or now,  # one that starts isn't interrupted for another
                idle_since=since if life.spec.id in idle else None,
                is_leaving=life.view.state is HostState.DRAINING,
            )
            for life, recipe, size, _ in self._kept
        ]

    def start_host(self) -> None:
        """Start one more, for which there is memory."""
        self._starts += 1
        self._asking_since, self._lacks_memory = None, False
        spec = self._spec(self.model, self.terms.recipe)
        current, outdated = self._by_recipe()
        cause = start_cause(self.terms.policy, len(current), len(outdated))
        log.info("host_starting", host=spec.id, model=self.model, **{"for": cause})
        life = HostLife(spec, self._starts, self.terms.settings, self._around)
        task = asyncio.create_task(self._keep(life), name=f"host {spec.id}")
        self._kept.append(Kept(life, self.terms.recipe, self.terms.bytes, task))
        self._around.changed()

    def retire(self, host_id: str, reason: str) -> None:
        """Have one host end, losing nothing."""
        self._retire([kept for kept in self._live() if kept.life.spec.id == host_id], reason)

    async def stop(self, limit_s: float) -> None:
        """End all hosts; what runs may take so long. Returns when they are gone."""
        for kept in self._kept:
            kept.life.retire(STOPPING, limit_s)
        if self._kept:
            await asyncio.wait([kept.task for kept in self._kept])

    def _live(self) -> list[Kept]:
        return [kept for kept in self._kept if kept.life.view.state is not HostState.DRAINING]

    def _by_recipe(self) -> tuple[list[Kept], list[Kept]]:
        """Live hosts that are made as they should be, and those that aren't."""
        live, recipe = self._live(), self.terms.recipe
        return [k for k in live if k.recipe == recipe], [k for k in live if k.recipe != recipe]

    def _least_busy(self) -> list[Kept]:
        """Live hosts, those first that are missed least: with little to do, and young."""
        return sorted(self._live(), key=lambda kept: (kept.life.view.in_flight, -kept.life.began))

    def _in_flight(self) -> int:
        """As gateways tell, or as hosts do: a gateway may be unable to tell of what it runs."""
        return max(self.load.in_flight, sum(kept.life.view.in_flight for kept in self._live()))

    def _needed(self) -> int:
        load = Load(self.load.waiting, self._in_flight(), self.load.tokens)
        return hosts_needed(self.terms.policy, load)

    def _stop_idle(self, now: float) -> None:
        live = self._live()
        self._slack = slack_after(self._slack, len(live), self._needed(), now)
        if count := hosts_to_stop(self._slack, len(live), self.terms.policy, now):
            self._slack = None
            self._retire(self._least_busy()[:count], REMOVED if self.is_removed else IDLE)

    def _stop_replaced(self) -> None:
        """As many old hosts as ready new ones can stand in for."""
        current, outdated = self._by_recipe()
        still = max(1, self._needed()) - sum(map(_is_ready, current))
        self._retire(outdated[max(0, still) :], REPLACED)

    def _retire_unfit(self, now: float) -> None:
        """Hosts whose engine takes no new request: they drain at once, and others take over."""
        for kept in self._live():
            life, reason = kept.life, kept.life.retirement
            if not reason:
                continue
            self._retirement = (reason, round(time.time(), 1))
            log.error("host_retires", host=life.spec.id, model=self.model, reason=reason)
            self._retire([kept], reason)
            lived_s = now - (life.ready_at or now)
            if self._failures.note_retirement(reason, lived_s, now, self.terms.settings):
                self._tell_failure(life, reason)

    def _retire(self, hosts: list[Kept], reason: str) -> None:
        for kept in hosts:
            kept.life.retire(reason, self.terms.patience_s)

    async def _keep(self, life: HostLife) -> None:
        try:
            reason = await life.run()
        except Exception as fault:
            log.exception("host_broke", host=life.spec.id)
            reason = type(fault).__name__
        for kept in [kept for kept in self._kept if kept.life is life]:
            self._kept.remove(kept)
            if kept.recipe.restarts == self.terms.recipe.restarts:  # else forgotten by hand
                self._stopped += life.stopped
        if reason:
            self._note_failure(life, reason)
        elif life.ready_at and not life.retirement:
            self._failures.forgive(life.ready_at)  # it did all that was asked of it
        self._around.changed()

    def _note_failure(self, life: HostLife, reason: str) -> None:
        now = time.monotonic()
        lived_s = now - life.ready_at if life.ready_at else 0.0
        self._failures.note(reason, lived_s, now, self.terms.settings)
        self._tell_failure(life, reason)

    def _tell_failure(self, life: HostLife, reason: str) -> None:
        retry_in_s = round(self._failures.retry_at - time.monotonic(), 2)
        log.warning("host_ended", host=life.spec.id, reason=reason, retry_in_s=retry_in_s)
        if self._failures.has_failed:
            log.error("model_failed", model=self.model, reason=reason, retry_in_s=retry_in_s)


def _is_ready(kept: Kept) -> bool:
    return kept.life.view.state is HostState.READY
