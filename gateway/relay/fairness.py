"""Who is next: fair shares of a model between tenants, by tokens and not by requests.

The virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI '24):
each tenant's counter grows by the service it gets, divided by its weight, and the least is served
next. Who comes back starts where the least of those is that were here meanwhile: idling earns no
credit, and nobody who comes often has to wait for it. Nothing is held back: a tenant alone has all.
"""

from __future__ import annotations

INPUT_COST, OUTPUT_COST = 1, 2  # the paper's: a token that is computed alone costs more
SCALE = 1_000_000  # a counter's parts, so that a division by a weight is exact enough


def cost_of(input_tokens: int, output_tokens: int) -> int:
    """Of a request's tokens, those from the cache left out."""
    return INPUT_COST * input_tokens + OUTPUT_COST * output_tokens


class Shares:
    """The counters of one model's tenants. A request joins, is charged for, and leaves."""

    def __init__(self) -> None:
        self._counters: dict[str, int] = {}
        self._requests: dict[str, int] = {}  # that wait or run, of those who have any

    def join(self, tenant: str) -> None:
        """One more request of this tenant is here, waiting or running."""
        if tenant not in self._requests:
            floor = self._floor()
            self._counters[tenant] = max(self._counters.get(tenant, 0), floor)
        self._requests[tenant] = self._requests.get(tenant, 0) + 1

    def leave(self, tenant: str) -> None:
        """One fewer. Debts are remembered until all others have had as much."""
        self._requests[tenant] -= 1
        if self._requests[tenant]:
            return
        del self._requests[tenant]
        if not self._requests:
            self._counters.clear()
            return
        floor = self._floor()
        gone = [
            name
            for name, counter in self._counters.items()
            if counter <= floor and name not in self._requests
        ]
        for name in gone:
            del self._counters[name]

    def charge(self, tenant: str, cost: int, weight: int) -> None:
        """So much service was given to it; less than none takes some back."""
        counter = self._counters.get(tenant, 0) + cost * SCALE // weight
        self._counters[tenant] = max(counter, 0)

    def had(self, tenant: str) -> int:
        """Its counter: who has the least is next."""
        return self._counters.get(tenant, 0)

    def _floor(self) -> int:
        return min((self._counters[name] for name in self._requests), default=0)
