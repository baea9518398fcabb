"""The config's `[[tenants]]`: what is said there of tenants that commands have made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from runtime.config.kinds import Currency, DayOrNone, ModelId, Origin, Price, origin_fault
from runtime.config.limits import TenantRateSettings
from runtime.config.models import ModelSettings


class ContractSettings(Struct, frozen=True, kw_only=True):
    """What a tenant pays for a model instead of the list price, per 1,000,000 tokens.

    All of it is named: what was left out would be free.
    """

    model: ModelId
    currency: Currency
    input: Price
    cached_input: Price
    output: Price
    effective_from: DayOrNone = None  # None: from when it is deployed


class TenantSettings(Struct, frozen=True, kw_only=True):
    """What is said here of a tenant that `bulkhead tenants create` has made."""

    name: str
    origins: tuple[Origin, ...] = ()  # of web pages that may call with its keys (CORS)
    prices: tuple[ContractSettings, ...] = ()
    limits: tuple[TenantRateSettings, ...] = ()

    @staticmethod
    def faults(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """Origins that browsers send, one price a model and day, and its limits once."""
        for i, origin in enumerate(found.get("origins") or ()):
            if fault := origin_fault(origin or ""):
                yield f"origins[{i}]", fault
        prices = found.get("prices") or ()
        agreed = [price and (price.model, price.effective_from) for price in prices]
        for i, one in enumerate(agreed):
            if one and one[0] is not None and one in agreed[:i]:
                since = f" from {one[1]} on" if one[1] else ""
                yield f"prices[{i}].model", f"{one[0]!r} has a price{since} already"
        models = [one.model if one else None for one in found.get("limits") or ()]
        for i, model in enumerate(models):
            if model is not None and model in models[:i]:
                yield f"limits[{i}].model", f"{model or 'all models'!r} has limits already"


def tenant_faults(
    tenants: Sequence[TenantSettings | None], models: Sequence[ModelSettings | None]
) -> Iterator[tuple[str, str]]:
    """Tenants have different names; contracts and limits are about models there are."""
    names = [tenant.name if tenant else None for tenant in tenants]
    known = [model.id if model else None for model in models]
    for i, (tenant, name) in enumerate(zip(tenants, names, strict=True)):
        if name is not None and name in names[:i]:
            yield f"tenants[{i}].name", f"{name!r} is used twice"
        for key in ("prices", "limits"):
            for j, table in enumerate(getattr(tenant, key, ()) or ()):
                model = getattr(table, "model", None)
                if model and model not in known and None not in known:
                    yield f"tenants[{i}].{key}[{j}].model", f"there is no model {model!r}"
