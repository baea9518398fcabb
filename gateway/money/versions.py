"""Versions of a price: which is in force at a moment, and which a configuration adds. Pure.

A version never changes, and none is put into the past: what was in force at a moment stays so. Of
two that begin at one moment the one made later counts; so is a price taken back that was announced.
Times are microseconds UTC.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gateway.catalog.views import rfc3339
from gateway.prices import Priced, TokenPrices, format_price


@dataclass(frozen=True, slots=True)
class PriceVersion:
    """One price of one model, for everybody (`tenant_id` None) or for one tenant."""

    id: str
    model_id: str
    tenant_id: str | None
    prices: TokenPrices
    effective_from: int
    created_at: int
    reason: str

    @property
    def priced(self) -> Priced:
        """What a record keeps of it."""
        return Priced(self.prices, self.id, self.effective_from)


def told(version: PriceVersion) -> dict[str, object]:
    """As JSON tells of it: prices in units of currency per 1M tokens, as exact decimals."""
    return {
        "id": version.id,
        "object": "price_version",
        "model": version.model_id,
        "for": "everybody" if version.tenant_id is None else "tenant",
        "currency": version.prices.currency,
        "input": format_price(version.prices.input),
        "cached_input": format_price(version.prices.cached_input),
        "output": format_price(version.prices.output),
        "effective_from": rfc3339(version.effective_from),
        "created_at": rfc3339(version.created_at),
        "reason": version.reason,
    }


class Timeline:
    """All versions of one model's price, for everybody or for one tenant."""

    def __init__(self, versions: Iterable[PriceVersion] = ()) -> None:
        self._all = sorted(versions, key=lambda one: (one.effective_from, one.created_at))
        self._starts = [one.effective_from for one in self._all]
        self._priced = [one.priced for one in self._all]

    def at(self, us: int) -> PriceVersion | None:
        """What is in force at a moment."""
        place = bisect_right(self._starts, us)
        return self._all[place - 1] if place else None

    def priced_at(self, us: int) -> Priced | None:
        """What a record keeps of that."""
        place = bisect_right(self._starts, us)
        return self._priced[place - 1] if place else None

    def says(self, us: int, prices: TokenPrices) -> bool:
        """Whether this price was once made to begin at this very moment."""
        begins = slice(bisect_left(self._starts, us), bisect_right(self._starts, us))
        return any(one.prices == prices for one in self._all[begins])

    def begins_after(self, us: int) -> list[int]:
        """The moments, in order and each once, at which something begins later."""
        return sorted({start for start in self._starts if start > us})

    def __iter__(self) -> Iterator[PriceVersion]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A price that a configuration names. `since` None: from when it is deployed."""

    prices: TokenPrices
    since: int | None
    path: str  # of the price in the file


@dataclass(frozen=True, slots=True)
class Addition:
    """A version to add."""

    prices: TokenPrices
    effective_from: int
    reason: str


@dataclass(slots=True)
class Plan:
    """What a configuration adds to a timeline, and what it may not: path and message."""

    additions: list[Addition] = field(default_factory=list)
    faults: list[tuple[str, str]] = field(default_factory=list)


def plan(wanted: Sequence[Wanted], known: Timeline, now: int) -> Plan:
    """What has to be added so that `wanted` is in force. Nothing, if it is; safe to be repeated."""
    begun = sorted((w for w in wanted if _start(w) <= now), key=_start)
    later = sorted((w for w in wanted if _start(w) > now), key=_start)
    found = Plan()
    if not known:
        _begin(found, begun, later, now)
    else:
        _go_on(found, begun, known, now)
    for one in later:
        scheduled = known.at(_start(one))
        if not (scheduled and _begins(scheduled, one) and scheduled.prices == one.prices):
            found.additions.append(Addition(one.prices, _start(one), "announced"))
    _take_back(found, wanted, known, now)
    return found


def _begin(found: Plan, begun: list[Wanted], later: list[Wanted], now: int) -> None:
    """Nothing was charged before by any version: the first ones may say since when they hold."""
    for one in begun[:-1]:
        if one.since is not None:
            found.additions.append(Addition(one.prices, one.since, "first"))
    if begun:
        since = begun[-1].since
        found.additions.append(Addition(begun[-1].prices, now if since is None else since, "first"))
    elif later:
        found.faults.append((f"{later[0].path}.effective_from", NOTHING_UNTIL_THEN))
        found.additions.append(Addition(later[0].prices, now, "first"))


def _go_on(found: Plan, begun: list[Wanted], known: Timeline, now: int) -> None:
    for one in begun[:-1]:
        if one.since is not None and not known.says(one.since, one.prices):
            found.faults.append((f"{one.path}.effective_from", CHANGES_THE_PAST))
    if not begun:
        return
    present, in_force = begun[-1], known.at(now)
    if in_force is not None and in_force.prices == present.prices:
        return
    if present.since is None or in_force is None:
        found.additions.append(Addition(present.prices, now, "changed"))
    elif known.says(present.since, present.prices):
        found.additions.append(Addition(present.prices, now, "back in force"))
    else:
        found.faults.append((f"{present.path}.effective_from", CHANGES_THE_PAST))


def _take_back(found: Plan, wanted: Sequence[Wanted], known: Timeline, now: int) -> None:
    """What was announced and isn't wanted any more: what is in force before goes on."""
    for start in known.begins_after(now):
        if any(one.since == start for one in wanted):
            continue
        before = max((w for w in wanted if _start(w) < start), key=_start, default=None)
        in_force, announced = known.at(now), known.at(start)
        prices = before.prices if before else in_force.prices if in_force else None
        if prices is not None and announced is not None and announced.prices != prices:
            found.additions.append(Addition(prices, start, "taken back"))


def _start(one: Wanted) -> int:
    return -1 if one.since is None else one.since


def _begins(version: PriceVersion, one: Wanted) -> bool:
    return version.effective_from == one.since


CHANGES_THE_PAST = (
    "would change what was in force before now; name a day to come, or none: then it begins "
    "when it is deployed"
)
NOTHING_UNTIL_THEN = "no price is in force until then; give the one before it, too"
