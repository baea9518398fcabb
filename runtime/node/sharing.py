"""Who gets memory when all of it is taken, and who gives way. Pure: no clock, no process, no I/O.

Those that wait are served in the order in which they began to. A host that nobody needs gives way
at once, the longest idle first. A busy one gives way to a model that has none, once that has waited
for `yield_s` and the busy one has served for as long: so no two models push each other out in turns
shorter than that. No model is brought below the hosts that it is promised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

GRACE_S = 1.0  # between two requests of a client: a host isn't idle yet


@dataclass(frozen=True, slots=True)
class Holder:
    """A host that holds memory."""

    id: str
    model: str
    bytes: int
    since: float  # when it became ready, or began to start
    idle_since: float | None = None  # None: its model needs it
    is_leaving: bool = False  # it gives its memory back without being told again


@dataclass(frozen=True, slots=True)
class Ask:
    """A model that wants memory for one more host."""

    model: str
    bytes: int
    since: float
    is_optional: bool = False  # only if nobody has to give way for it, and nobody else waits


@dataclass(slots=True)
class Shares:
    """Who may start a host now, which hosts give way, and who goes on waiting."""

    starts: list[Ask] = field(default_factory=list)
    leaving: list[Holder] = field(default_factory=list)
    waiting: list[Ask] = field(default_factory=list)


def share(
    budget: int,
    holders: Sequence[Holder],
    asks: Sequence[Ask],
    promised: dict[str, int],
    now: float,
    yield_s: float,
) -> Shares:
    """Share out a budget of bytes. `promised`: the hosts that each model keeps in any case."""
    shares = Shares()
    free = budget - sum(holder.bytes for holder in holders)
    coming = sum(holder.bytes for holder in holders if holder.is_leaving)
    staying = [holder for holder in holders if not holder.is_leaving]
    for ask in sorted(asks, key=lambda ask: (ask.is_optional, ask.since)):
        if ask.bytes <= free:
            free -= ask.bytes
            shares.starts.append(ask)
            continue
        if not ask.is_optional and (short := ask.bytes - free - coming) > 0:
            for holder in _giving_way(ask, short, staying, promised, now, yield_s):
                staying.remove(holder)
                shares.leaving.append(holder)
                coming += holder.bytes
        shares.waiting.append(ask)
        # what will be free is kept for it: a smaller one that came later doesn't overtake it
        from_coming = min(coming, ask.bytes)
        coming -= from_coming
        free = max(0, free - (ask.bytes - from_coming))
    return shares


def _giving_way(
    ask: Ask,
    short: int,
    staying: Sequence[Holder],
    promised: dict[str, int],
    now: float,
    yield_s: float,
) -> list[Holder]:
    """The hosts that free `short` bytes, as they are preferred; none if all are too few."""
    live = Counter(holder.model for holder in staying)
    found: list[Holder] = []
    for holder in _candidates(ask, staying, live, now, yield_s):
        if sum(one.bytes for one in found) >= short:
            break
        if live[holder.model] > promised.get(holder.model, 0) and _may_go(ask, holder, live):
            live[holder.model] -= 1
            found.append(holder)
    enough = sum(holder.bytes for holder in found) >= short
    return _without_waste(found, short) if enough else []


def _candidates(
    ask: Ask, staying: Sequence[Holder], live: Counter[str], now: float, yield_s: float
) -> list[Holder]:
    """Other models' hosts that may be told to go: idle ones first, then busy ones."""
    others = [holder for holder in staying if holder.model != ask.model]
    idle = [one for one in others if one.idle_since is not None and one.idle_since <= now - GRACE_S]
    idle.sort(key=lambda one: one.idle_since or 0.0)
    if now - ask.since < yield_s:
        return idle
    busy = [one for one in others if one not in idle and one.since <= now - yield_s]
    return idle + sorted(busy, key=lambda one: (-live[one.model], one.since))


def _may_go(ask: Ask, holder: Holder, live: Counter[str]) -> bool:
    """A needed host goes only to a model that has none, or far fewer: two would push in turns."""
    has = live[ask.model]
    return holder.idle_since is not None or has == 0 or has + 1 < live[holder.model]


def _without_waste(found: list[Holder], short: int) -> list[Holder]:
    """The same without those that a later, larger one has made needless."""
    for holder in list(found):
        if sum(one.bytes for one in found) - holder.bytes >= short:
            found.remove(holder)
    return found
