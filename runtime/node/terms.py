"""What a configuration says of one model's hosts, as its pool takes it."""

from __future__ import annotations

from typing import Any, NamedTuple

from runtime.config.sections import HostSettings
from runtime.node.scaling import Policy


class Recipe(NamedTuple):
    """What a host is made by: hosts of equal recipes are the same."""

    engine: str
    path: str
    options: dict[str, Any]
    default_max_tokens: int
    restarts: int = 0  # raised to have all hosts replaced


class Terms(NamedTuple):
    """What a configuration says of one model's hosts."""

    recipe: Recipe
    policy: Policy
    bytes: int  # that one host takes
    settings: HostSettings
    patience_s: float  # what runs on a host that goes may take so long
    misfit: str = ""  # why it can never have a host
