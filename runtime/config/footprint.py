"""How much memory a model's host takes, and whether all that is promised fits the budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engines import registry
from runtime.config.models import ModelSettings


def host_bytes(model: ModelSettings, folder: str) -> int:
    """What one host of a model of ours takes: as configured, else as its engine estimates.

    `folder` holds the weights; where it is empty, they count nothing.
    """
    return model.memory_bytes or registry.memory_bytes(model.engine, folder, model.options)


def misfits(
    models: Sequence[ModelSettings], sizes: Sequence[int], budget: int
) -> Iterator[tuple[int, str, str]]:
    """The models that can never have their hosts within a budget of bytes: (index, key, reason).

    `sizes`: the bytes of one host of each model.
    """
    promised = [model.min_hosts * size for model, size in zip(models, sizes, strict=True)]
    for i, (model, size) in enumerate(zip(models, sizes, strict=True)):
        left = budget - (sum(promised) - promised[i])
        least = max(1, model.min_hosts)
        if size * least <= left:
            continue
        key = "min_hosts" if size <= budget and model.min_hosts else "memory_bytes"
        hosts = "a host" if least == 1 else f"{least} hosts"
        beside = (
            "" if left == budget else f"; the hosts that other models keep leave {max(0, left)}"
        )
        hint = "" if model.memory_bytes else " (an estimate; set `memory_bytes` if you know better)"
        yield i, key, f"{hosts} of {size} bytes{hint} can't fit a memory budget of {budget}{beside}"


def memory_faults(models: Sequence[ModelSettings | None], budget: int) -> Iterator[tuple[str, str]]:
    """The same for a configuration that is being checked: (path, reason). A budget of 0 is none.

    Fetched weights aren't looked for, so an estimate may be too low here, and never too high. A
    model with a fault in what counts here is left out, as if it took nothing.
    """
    if not budget:
        return
    ours = [(i, model) for i, model in enumerate(models) if model and _can_be_sized(model)]
    sizes = [host_bytes(model, model.path) for _, model in ours]
    for at, key, reason in misfits([model for _, model in ours], sizes, budget):
        yield f"models[{ours[at][0]}].{key}", reason


def _can_be_sized(model: ModelSettings) -> bool:
    """One of ours, without a fault (None) in what its size and its number depend on."""
    counts = (model.min_hosts, model.memory_bytes, model.path, model.options)
    return model.engine in registry.FOOTPRINTS and None not in counts
