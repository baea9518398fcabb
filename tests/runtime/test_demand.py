"""What gateways need, summed up; what nobody repeats is forgotten."""

from __future__ import annotations

from runtime.node.demand import Demands
from runtime.node.scaling import Load
from runtime.node_wire import DEMAND_TTL_S, Demand, ModelDemand


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def demand(**models: tuple[int, int, int]) -> Demand:
    return Demand(
        models={
            model: ModelDemand(waiting=waiting, in_flight=in_flight, tokens=tokens)
            for model, (waiting, in_flight, tokens) in models.items()
        }
    )


def test_all_gateways_together_are_the_load() -> None:
    demands = Demands(Clock())
    demands.tell("one", demand(a=(1, 2, 30), b=(0, 1, 5)))
    demands.tell("two", demand(a=(4, 0, 7)))
    assert demands.loads() == {"a": Load(5, 2, 37), "b": Load(0, 1, 5)}


def test_what_a_gateway_tells_last_is_what_counts() -> None:
    demands = Demands(Clock())
    demands.tell("one", demand(a=(1, 2, 30)))
    demands.tell("one", demand(b=(1, 0, 3)))
    assert demands.loads() == {"b": Load(1, 0, 3)}
    demands.tell("one", demand())
    assert demands.loads() == {}


def test_a_gateway_that_died_needs_nothing_after_a_while() -> None:
    clock = Clock()
    demands = Demands(clock)
    demands.tell("one", demand(a=(1, 0, 0)))
    clock.now += DEMAND_TTL_S
    demands.tell("two", demand(a=(0, 1, 0)))
    assert demands.loads() == {"a": Load(1, 1, 0)}
    clock.now += 0.01
    assert demands.loads() == {"a": Load(0, 1, 0)}
