"""What the panel of the live view says of models and hosts, kept up to date by what is heard. Pure.

Times are seconds of any one clock, and are passed in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateway.live.words import span
from runtime.node_wire import Hosts, HostState, HostView, ModelState, ModelView

BUSY_S = 1.0  # after its last request a model isn't called idle yet


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the panel: a model, or a host under it."""

    name: str
    state: str
    is_host: bool = False
    hosts: str = ""
    running: int | None = None  # None: nobody can tell
    waiting: int | None = None
    rss_bytes: int = 0
    idle_s: float | None = None  # None: busy, or not up
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Attached:
    """A model that is served by URL, and what went wrong there last."""

    id: str
    is_down: bool = False
    reason: str = ""
    failed_at: float | None = None  # None: nothing has


class Board:
    """The node's last word, and when each model was last busy."""

    def __init__(self) -> None:
        self._hosts: Hosts | None = None
        self._attached: tuple[Attached, ...] = ()
        self._busy_at: dict[str, float] = {}
        self.num_requests = 0
        self.num_errors = 0

    @property
    def deployment(self) -> int:
        """The number of the configuration that the node runs; 0: not known."""
        return self._hosts.deployment if self._hosts else 0

    @property
    def version(self) -> int:
        """Of what the node has told."""
        return self._hosts.version if self._hosts else 0

    def see(self, hosts: Hosts, attached: Sequence[Attached], now: float) -> None:
        """The node has told, and these models are served by URL."""
        self._hosts, self._attached = hosts, tuple(attached)
        for model in hosts.models:
            if model.in_flight or model.waiting or model.id not in self._busy_at:
                self._busy_at[model.id] = now

    def hear(self, event: dict[str, object], now: float) -> None:
        """A request has ended."""
        self.num_requests += 1
        self.num_errors += event.get("result") == "error"
        if model := event.get("model"):
            self._busy_at[str(model)] = now

    def rows(self, now: float, most: int) -> list[Row]:
        """At most so many lines: models before their hosts, and what didn't fit in a word."""
        models = list(self._models(now))
        every = [row for model in models for row in (model, *self._beneath(model))]
        if len(every) <= most:
            return every
        if len(models) <= most:
            return models
        left = len(models) - (most - 1)
        return [*models[: most - 1], Row(f"and {left} more", "")]

    def _models(self, now: float) -> Iterator[Row]:
        if self._hosts is None:
            return
        for model in self._hosts.models:
            rss = sum(host.rss_bytes for host in self._hosts.hosts if host.model == model.id)
            yield Row(
                name=model.id,
                state=model.state.replace("_", " "),
                hosts=f"{model.hosts}/{model.max_hosts}",
                running=model.in_flight,
                waiting=model.waiting,
                rss_bytes=rss,
                idle_s=self._idle_s(model, now),
                trouble=model.reason if model.state is not ModelState.READY else "",
            )
        for server in self._attached:
            state = "down" if server.is_down else "attached"
            yield Row(server.id, state, trouble=_last_trouble(server, now))

    def _idle_s(self, model: ModelView, now: float) -> float | None:
        idle_s = now - self._busy_at[model.id]
        is_up = model.state is ModelState.READY and not model.in_flight
        return idle_s if is_up and idle_s >= BUSY_S else None

    def _beneath(self, model: Row) -> list[Row]:
        """The hosts, where they say more than the model's line does."""
        assert self._hosts is not None
        hosts = [host for host in self._hosts.hosts if host.model == model.name]
        if len(hosts) == 1 and hosts[0].state is not HostState.DRAINING:
            return []
        return [_host_row(host) for host in hosts]


def _last_trouble(server: Attached, now: float) -> str:
    if server.failed_at is None:
        return ""
    return f"{server.reason} ({span(now - server.failed_at)} ago)"


def _host_row(host: HostView) -> Row:
    return Row(
        name=host.id,
        state=host.state.value,
        is_host=True,
        running=host.in_flight,
        rss_bytes=host.rss_bytes,
        trouble=host.reason,
    )
