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
    """A model's last trouble."""

    url: str
    reason: str
    at: float  # unix seconds


class Troubles:
    """By model, of the servers at their URLs. `on_change` is told all of them when they change."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.on_change: Callable[[dict[str, Trouble]], None] = lambda _: None
        self._now = now
        self._last: dict[str, Last] = {}
        self._down: dict[str, float] = {}  # since when, unix seconds, by URL

    def unreachable(self, model: str, url: str, reason: str) -> None:
        """There was no connection."""
        is_new = url not in self._down
        if is_new:
            self._down[url] = self._now()
            log.warning("attached_server_down", url=url, model=model, reason=reason)
        self._note(model, Last(url, reason, self._now()), is_new=is_new)

    def failed(self, model: str, url: str, reason: str) -> None:
        """It was reached, but didn't answer as it should."""
        self._note(model, Last(url, reason, self._now()), is_new=False)

    def answered(self, url: str) -> None:
        """It was reached."""
        since = self._down.pop(url, None)
        if since is not None:
            log.info("attached_server_up", url=url, down_s=round(self._now() - since, 1))
            self._tell()

    def keep(self, urls: Collection[str]) -> None:
        """Forget the servers elsewhere: nothing is attached there any more."""
        self._down = {url: since for url, since in self._down.items() if url in urls}
        self._last = {model: last for model, last in self._last.items() if last.url in urls}
        self._tell()

    def _note(self, model: str, last: Last, *, is_new: bool) -> None:
        before = self._last.get(model)
        is_same = before is not None and before[:2] == last[:2] and not is_new
        if is_same and before and 0 <= last.at - before.at < TELL_EVERY_S:
            return
        self._last[model] = last
        self._tell()

    def _tell(self) -> None:
        with suppress(OSError):  # no disk space, say: no request fails for that
            self.on_change(
                {
                    model: Trouble(reason=last.reason, at=last.at, is_down=last.url in self._down)
                    for model, last in self._last.items()
                }
            )
