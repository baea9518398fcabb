"""Charges as rows of FOCUS 1.2 and 1.4, the FinOps Open Cost and Usage Specification.

One row is one SKU, a class of tokens of a model, at one price: unit price times quantity is the
cost, exactly. So nothing is rounded here; an invoice that rounds says so in a row of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from operator import itemgetter

import msgspec

from gateway.usage.calendar import HOUR_US, month_of, seconds
from gateway.usage.charge import Charge
from gateway.usage.focus_columns import Row, Value, Version, columns
from gateway.usage.names import Names


def row(charge: Charge, names: Names, version: Version) -> Row:
    """A charge as a row, in the order of `columns`."""
    values = _identity(charge) | _money(charge) | _origin(names) | _custom(charge)
    return _in_order(version)(values)


@lru_cache(maxsize=2)
def _in_order(version: Version) -> Callable[[dict[str, Value]], Row]:
    return itemgetter(*(column.name for column in columns(version)))


def _identity(charge: Charge) -> dict[str, Value]:
    """What was used, by whom and when."""
    meter, direction, cache = _METERS[charge.token_class]
    period_start, period_end = month_of(charge.billed_us)
    project = charge.project_id or None
    return {
        "BillingAccountId": charge.tenant_id,
        "BillingAccountName": charge.tenant_name,
        "BillingAccountType": "Tenant",
        "BillingPeriodEnd": period_end,
        "BillingPeriodStart": period_start,
        "ChargeCategory": "Usage",
        "ChargeClass": "Correction" if charge.is_late else None,
        "ChargeDescription": f"{charge.model_id} {meter.lower()}",
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodEnd": charge.used_us + HOUR_US,
        "ChargePeriodStart": charge.used_us,
        "CommitmentDiscountStatus": None,
        "InvoiceId": f"{charge.tenant_id}-{seconds(period_start)[:7]}-{charge.currency}",
        "PricingCategory": "Standard",
        "PricingUnit": "1000000 Tokens",
        "ResourceId": charge.model_id,
        "ResourceName": charge.model_id,
        "ResourceType": "Model",
        "ServiceCategory": "AI and Machine Learning",
        "ServiceSubcategory": "Generative AI",
        "SkuId": charge.sku_id,
        "SkuMeter": meter,
        "SkuPriceDetails": _json(
            x_ModelId=charge.model_id, x_TokenCacheAction=cache, x_TokenDirection=direction
        ),
        "SkuPriceId": f"{charge.sku_id}/standard",
        "SubAccountId": project,
        "SubAccountName": (charge.project_name or charge.project_id) if project else None,
        "SubAccountType": "Project" if project else None,
        "Tags": _json(**{"bulkhead/api_key_id": charge.api_key_id}) if charge.api_key_id else "{}",
    }


def _money(charge: Charge) -> dict[str, Value]:
    """How much, and what it costs."""
    amount = charge.amount_pico
    return {
        "BilledCost": amount,
        "BillingCurrency": charge.currency,
        "ConsumedQuantity": charge.quantity,
        "ConsumedUnit": "Tokens",
        "ContractedCost": amount,
        "ContractedUnitPrice": charge.price_pico,  # pico a token is micro a million
        "EffectiveCost": amount,
        "ListCost": charge.list_amount_pico,
        "ListUnitPrice": charge.list_unit_pico,
        "PricingCurrency": charge.currency,
        "PricingCurrencyContractedUnitPrice": charge.price_pico,
        "PricingCurrencyEffectiveCost": amount,
        "PricingCurrencyListUnitPrice": charge.list_unit_pico,
        "PricingQuantity": charge.quantity,
    }


def _origin(names: Names) -> dict[str, Value]:
    """Whose service it is."""
    return {
        "HostProviderName": names.host,
        "InvoiceIssuerName": names.issuer,
        "ProviderName": names.provider,
        "PublisherName": names.publisher,
        "RegionId": names.region or None,
        "RegionName": names.region_name or names.region or None,
        "ServiceName": names.service,
        "ServiceProviderName": names.provider,
    }


def _custom(charge: Charge) -> dict[str, Value]:
    """What FOCUS has no column for."""
    return {
        "x_ApiKeyId": charge.api_key_id or None,
        "x_CorrectedRecordId": charge.corrects or None,
        "x_CorrectionReason": charge.reason or None,
        "x_FirstSeq": charge.first_seq,
        "x_LastSeq": charge.last_seq,
        "x_ListPriceVersionId": charge.list_price_version_id or None,
        "x_ModelId": charge.model_id,
        "x_PriceVersionId": charge.price_version_id or None,
        "x_RecordCount": charge.records,
        "x_RecordId": charge.record_id or None,
        "x_RequestId": charge.request_id or None,
        "x_Subject": charge.subject or None,
    }


@lru_cache(maxsize=4096)
def _json(**values: str) -> str:
    return msgspec.json.encode(values, order="sorted").decode()


# token class: meter, direction, cache action
_METERS = {
    "input": ("Input Tokens", "Input", "Uncached"),
    "cached_input": ("Cached Input Tokens", "Input", "Read"),
    "output": ("Output Tokens", "Output", "Other"),
}
