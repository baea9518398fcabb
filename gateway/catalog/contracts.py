"""What a tenant has agreed to pay for a model, instead of its list price."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping

from gateway.catalog.catalog import Deployment, prices_of
from gateway.prices import Priced, Terms, TokenPrices
from runtime.config.sections import TenantSettings

Day = datetime.date | None


class Contracts:
    """Prices by the tenant's name and the model's id, and since when. Currencies may differ."""

    def __init__(self, prices: Mapping[tuple[str, str], tuple[TokenPrices, Day]]) -> None:
        self._prices = prices

    def prices(self, tenant: str, deployment: Deployment) -> TokenPrices:
        """What this tenant pays for this model."""
        return self._agreed(tenant, deployment)[0]

    def terms(self, tenant: str, deployment: Deployment) -> Terms:
        """What this tenant pays for this model, and what everybody does."""
        return Terms(Priced(self.prices(tenant, deployment)), Priced(deployment.prices))

    def since(self, tenant: str, deployment: Deployment) -> Day:
        """Since when, if the operator says so."""
        return self._agreed(tenant, deployment)[1]

    def _agreed(self, tenant: str, deployment: Deployment) -> tuple[TokenPrices, Day]:
        listed = (deployment.prices, deployment.prices_since)
        return self._prices.get((tenant, deployment.id), listed)


def contracts_of(tenants: Iterable[TenantSettings]) -> Contracts:
    """The contracts of a configuration."""
    return Contracts(
        {
            (tenant.name, contract.model): (prices_of(contract), contract.effective_from)
            for tenant in tenants
            for contract in tenant.prices
        }
    )
