"""What a tenant has agreed to pay for a model, instead of its list price."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gateway.catalog import Deployment, prices_of
from gateway.prices import TokenPrices
from runtime.sections import TenantSettings


class Contracts:
    """Prices by the tenant's name and the model's id. Currencies may differ."""

    def __init__(self, prices: Mapping[tuple[str, str], TokenPrices]) -> None:
        self._prices = prices

    def prices(self, tenant: str, deployment: Deployment) -> TokenPrices:
        """What this tenant pays for this model."""
        return self._prices.get((tenant, deployment.id), deployment.prices)


def contracts_of(tenants: Iterable[TenantSettings]) -> Contracts:
    """The contracts of a configuration."""
    return Contracts(
        {
            (tenant.name, contract.model): prices_of(contract)
            for tenant in tenants
            for contract in tenant.prices
        }
    )
