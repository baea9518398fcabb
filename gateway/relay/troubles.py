"""What went wrong last with each attached server: logged when it goes down and when it is back.

What a client did wrong is no trouble of the server's. One that answers, whatever it says, is up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import NamedTuple

import structlog

from runtime.deploy.running import Trouble

log = structlog.get_logger()

TELL_EVERY_S = 1.0  # while the same goes on


class Last(NamedTuple):
    """The last trouble with one server of a model."""

    reason: str
    at: float  # unix seconds


Told = dict[str, tuple[Trouble, ...]]
Of = tuple[str, str]  # a model, and the URL of one of its servers


class Troubles:
    """By model, of the servers at their URLs. `on_change` is told all of them when they change."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.on_change: Callable[[Told], None] = lambda _: None
        self._now = now
        self._last: dict[Of, Last] = {}
        self._down: dict[str, float] = {}  # since when, unix seconds, by URL
        self._breakers: dict[Of, str] = {}  # that aren't closed
        self._guards: dict[Of, str] = {}  # why those that aren't trusted are not

    def unreachable(self, model: str, url: str, reason: str) -> None:
        """There was no connection."""
        is_new = url not in self._down
        if is_new:
            self._down[url] = self._now()
            log.warning("attached_server_down", url=url, model=model, reason=reason)
        self._note((model, url), Last(reason, self._now()), is_new=is_new)

    def failed(self, model: str, url: str, reason: str) -> None:
        """It was reached, but didn't answer as it should."""
        self._note((model, url), Last(reason, self._now()), is_new=False)

    def answered(self, url: str) -> None:
        """It was reached."""
        since = self._down.pop(url, None)
        if since is not None:
            log.info("attached_server_up", url=url, down_s=round(self._now() - since, 1))
            self._tell()

    def breaker(self, model: str, url: str, state: str) -> None:
        """Its circuit breaker is in this state now. A line at each change but for probes."""
        before = self._breakers.get((model, url), "closed")
        if state == before:
            return
        if state == "closed":
            del self._breakers[model, url]
            log.info("attached_server_closed", url=url, model=model)
        else:
            self._breakers[model, url] = state
            if before == "closed":
                last = self._last.get((model, url))
                reason = last.reason if last else ""
                log.warning("attached_server_opened", url=url, model=model, reason=reason)
        self._tell()

    def guard(self, model: str, url: str, fault: str) -> None:
        """Why the guard in a server isn't trusted to watch; "": it is, or there is none."""
        of = (model, url)
        before = self._guards.pop(of, "")
        if fault:
            self._guards[of] = fault
            if not before:
                log.warning("attached_server_unguarded", url=url, model=model, reason=fault)
            if fault != before:
                self._note(of, Last(fault, self._now()), is_new=True)
        elif before:
            log.info("attached_server_guarded", url=url, model=model)
            self._tell()

    def keep(self, urls: Collection[str]) -> None:
        """Forget the servers elsewhere: nothing is attached there any more."""
        self._down = {url: since for url, since in self._down.items() if url in urls}
        self._last = {of: last for of, last in self._last.items() if of[1] in urls}
        self._breakers = {of: state for of, state in self._breakers.items() if of[1] in urls}
        self._guards = {of: fault for of, fault in self._guards.items() if of[1] in urls}
        self._tell()

    def told(self) -> Told:
        """All of them."""
        found: dict[str, list[Trouble]] = {}
        for (model, url), last in self._last.items():
            breaker = self._breakers.get((model, url), "closed")
            guard = self._guards.get((model, url), "")
            trouble = Trouble(
                url=url,
                reason=last.reason,
                at=last.at,
                is_down=url in self._down or breaker != "closed" or bool(guard),
                breaker=breaker,
                guard=guard,
            )
            found.setdefault(model, []).append(trouble)
        return {model: tuple(each) for model, each in found.items()}

    def _note(self, of: Of, last: Last, *, is_new: bool) -> None:
        before = self._last.get(of)
        is_same = before is not None and before.reason == last.reason and not is_new
        if is_same and before and 0 <= last.at - before.at < TELL_EVERY_S:
            return
        self._last[of] = last
        self._tell()

    def _tell(self) -> None:
        with suppress(OSError):  # no disk space, say: no request fails for that
            self.on_change(self.told())
