"""The columns of FOCUS 1.2 and 1.4's Cost and Usage, as far as they have something to say here."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

Version = Literal["1.2", "1.4"]
Kind = Literal["text", "time", "money", "price", "millions", "tokens", "count"]
Value = str | int | None  # times in microseconds; decimals as whole numbers of 10^-PLACES
Row = tuple[Value, ...]

# A price is told for a million tokens: pico-units a token are its millionths.
PLACES: dict[Kind, int] = {"money": 12, "price": 6, "millions": 6}
COSTS = ("BilledCost", "ContractedCost", "EffectiveCost", "ListCost")


class Column(NamedTuple):
    """A column: its name, and what its values are."""

    name: str
    kind: Kind = "text"


@lru_cache(maxsize=2)
def columns(version: Version) -> tuple[Column, ...]:
    """In the order of their names, the specification's first; custom ones, x_, follow."""
    own = _ONLY_12 if version == "1.2" else _ONLY_14
    return (*sorted((*_BOTH, *own)), *_CUSTOM)


_BOTH = (
    *(Column(name, "money") for name in COSTS),
    Column("BillingAccountId"),
    Column("BillingAccountName"),
    Column("BillingAccountType"),
    Column("BillingCurrency"),
    Column("BillingPeriodEnd", "time"),
    Column("BillingPeriodStart", "time"),
    Column("ChargeCategory"),
    Column("ChargeClass"),
    Column("ChargeDescription"),
    Column("ChargeFrequency"),
    Column("ChargePeriodEnd", "time"),
    Column("ChargePeriodStart", "time"),
    Column("ConsumedQuantity", "tokens"),
    Column("ConsumedUnit"),
    Column("ContractedUnitPrice", "price"),
    Column("InvoiceId"),
    Column("InvoiceIssuerName"),
    Column("ListUnitPrice", "price"),
    Column("PricingCategory"),
    Column("PricingCurrency"),
    Column("PricingQuantity", "millions"),
    Column("PricingUnit"),
    Column("RegionId"),
    Column("RegionName"),
    Column("ResourceId"),
    Column("ResourceName"),
    Column("ResourceType"),
    Column("ServiceCategory"),
    Column("ServiceName"),
    Column("ServiceSubcategory"),
    Column("SkuId"),
    Column("SkuMeter"),
    Column("SkuPriceDetails"),
    Column("SkuPriceId"),
    Column("SubAccountId"),
    Column("SubAccountName"),
    Column("SubAccountType"),
    Column("Tags"),
)

# 1.2's own validator also asks for a discount's status and for prices in the pricing currency.
_ONLY_12 = (
    Column("CommitmentDiscountStatus"),
    Column("PricingCurrencyContractedUnitPrice", "price"),
    Column("PricingCurrencyEffectiveCost", "money"),
    Column("PricingCurrencyListUnitPrice", "price"),
    Column("ProviderName"),
    Column("PublisherName"),
)

_ONLY_14 = (Column("HostProviderName"), Column("ServiceProviderName"))

_CUSTOM = (
    Column("x_ApiKeyId"),
    Column("x_CorrectedRecordId"),
    Column("x_CorrectionReason"),
    Column("x_FirstSeq", "count"),
    Column("x_LastSeq", "count"),
    Column("x_ListPriceVersionId"),
    Column("x_ModelId"),
    Column("x_PriceVersionId"),
    Column("x_RecordCount", "count"),
    Column("x_RecordId"),
    Column("x_RequestId"),
    Column("x_Subject"),
)
