"""The prices that a configuration names: each model's, and what tenants have agreed on."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Mapping, Sequence

from gateway.catalog.catalog import US, prices_of
from gateway.money.versions import Wanted
from gateway.prices import Priced
from runtime.config.lifecycle import midnight
from runtime.config.sections import FileSettings

Key = tuple[str, str | None]  # a model's id, and the name of the tenant that has agreed on it


def wanted_of(file: FileSettings) -> Mapping[Key, list[Wanted]]:
    """By model and tenant; None is everybody."""
    found: dict[Key, list[Wanted]] = {}
    for i, model in enumerate(file.models):
        path = f"models[{i}]"
        every = [Wanted(prices_of(model.price), _us(model.price.effective_from), f"{path}.price")]
        for j, price in enumerate(model.prices):
            one = Wanted(prices_of(price), _us(price.effective_from), f"{path}.prices[{j}]")
            every.append(one)
        found[model.id, None] = every
    found.update(_agreed(file))
    return found


def named_for(wanted: Sequence[Wanted], us: int) -> Priced:
    """What a configuration names for a moment, whatever a store has; its first if it names none."""
    begun = [one for one in wanted if one.since is None or one.since <= us]
    found = (
        max(begun, key=lambda one: -1 if one.since is None else one.since) if begun else wanted[0]
    )
    return Priced(found.prices, since=found.since)


def _agreed(file: FileSettings) -> Mapping[Key, list[Wanted]]:
    found: dict[Key, list[Wanted]] = defaultdict(list)
    for i, tenant in enumerate(file.tenants):
        for j, price in enumerate(tenant.prices):
            path = f"tenants[{i}].prices[{j}]"
            one = Wanted(prices_of(price), _us(price.effective_from), path)
            found[price.model, tenant.name].append(one)
    return found


def _us(day: datetime.date | None) -> int | None:
    return int(midnight(day).timestamp()) * US if day else None
