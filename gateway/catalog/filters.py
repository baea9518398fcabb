"""Which models a caller asked to see: the query of `GET /v1/models`, read and applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from gateway.catalog.views import Shown
from gateway.errors import BadRequest
from gateway.schema import ENDPOINTS, supported_parameters
from runtime.config.cards import Modality, Task

FILTERS = ("task", "modality", "q")
LISTS = ("supported_parameters",)
KNOWN = {
    "task": frozenset(get_args(Task)),
    "modality": frozenset(get_args(Modality)),
    # every field that OpenAI documents may be asked for, though no model may support it
    "supported_parameters": frozenset(
        name for endpoint in ENDPOINTS.values() for name in endpoint.fields.__struct_fields__
    ),
}


@dataclass(frozen=True, slots=True)
class Filters:
    """What a model must be. "" and an empty set: anything."""

    task: str = ""
    parameters: frozenset[str] = frozenset()
    modality: str = ""
    q: str = ""

    def fit(self, shown: Shown) -> bool:
        """Whether a model is one of those that were asked for."""
        card = shown.deployment.facts.card
        modalities = (*card.architecture.input_modalities, *card.architecture.output_modalities)
        words = f"{shown.name}\n{shown.deployment.id}\n{card.name}\n{card.description}"
        return (
            self.task in ("", card.task)
            and self.parameters <= set(supported_parameters())
            and (not self.modality or self.modality in modalities)
            and self.q.casefold() in words.casefold()
        )


def filters_of(query: Mapping[str, str], lists: Mapping[str, tuple[str, ...]]) -> Filters:
    """The filters of a query. Raises BadRequest for a value that isn't one."""
    names = lists.get("supported_parameters", ())
    for name in names:
        _check("supported_parameters", name)
    for filter in ("task", "modality"):
        if filter in query:
            _check(filter, query[filter])
    return Filters(
        task=query.get("task", ""),
        parameters=frozenset(names),
        modality=query.get("modality", ""),
        q=query.get("q", ""),
    )


def _check(filter: str, value: str) -> None:
    if value not in KNOWN[filter]:
        known = ", ".join(sorted(KNOWN[filter]))
        raise BadRequest(f"{filter}: {value[:64]!r} is none of {known}", param=filter)
