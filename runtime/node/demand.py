"""What all gateways together need of this node, as each has told it last."""

from __future__ import annotations

from collections.abc import Callable

from runtime.node.scaling import Load
from runtime.node_wire import DEMAND_TTL_S, Demand


class Demands:
    """The demand of each gateway, which counts until it tells again, or for DEMAND_TTL_S."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._told: dict[str, tuple[float, Demand]] = {}

    def tell(self, gateway: str, demand: Demand) -> None:
        """Take in what a gateway needs now."""
        self._told[gateway] = (self._now(), demand)

    def loads(self) -> dict[str, Load]:
        """The load of each model that anybody needs."""
        oldest = self._now() - DEMAND_TTL_S
        self._told = {name: one for name, one in self._told.items() if one[0] >= oldest}
        loads: dict[str, Load] = {}
        for _, demand in self._told.values():
            for model, part in demand.models.items():
                sum_ = loads.get(model, Load())
                loads[model] = Load(
                    sum_.waiting + part.waiting,
                    sum_.in_flight + part.in_flight,
                    sum_.tokens + part.tokens,
                )
        return loads
