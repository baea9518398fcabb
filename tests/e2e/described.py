"""Calls made up from an OpenAPI document, each answer held against what the document says."""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import deepcopy
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.core.parameters import ParameterLocation
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    ignored_auth,
    negative_data_rejection,
    positive_data_acceptance,
)

from gateway.admin.changes.changing import MAX_BODY_BYTES
from gateway.errors import BadRequest
from gateway.usage_period import period_of
from tests.stack import SOAK

POSITIVE, NEGATIVE = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
HEADER = ParameterLocation.HEADER
EXAMPLES = 300 if SOAK else 12
TOO_LONG = 413

Call = schemathesis.Case[Any]
Document = dict[str, Any]


def operations(document: Document, *, that_take: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """Path and method of each; of those alone that take a body, say."""
    return [
        (path, method)
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if not that_take or any(part in operation for part in that_take)
    ]


def strict(document: Document) -> Document:
    """The same, but that answers have the keys that it tells of, and no others."""
    document = deepcopy(document)
    for schema in document["components"]["schemas"].values():
        if schema.get("type") == "object" and "properties" in schema:
            schema.setdefault("additionalProperties", False)
    return document


class Described:
    """A document, and where what it tells of is served, for those who have `key`."""

    def __init__(
        self,
        document: Document,
        url: str,
        key: str,
        most_events: int = 10_000,
        choosy: Collection[str] = (),
    ) -> None:
        self.schema = schemathesis.openapi.from_dict(strict(document))
        self.schema.config.update(base_url=url)
        self.schema.config.max_stream_events = most_events
        self.takes_all = set(document["paths"]) - set(choosy)
        self._session = requests.Session()
        self._headers = {"authorization": f"Bearer {key}"}

    def hold(
        self, path: str, method: str, mode: schemathesis.GenerationMode, mend: Callable[[Call], Any]
    ) -> list[int]:
        """Call it many times; the statuses that came. `mend` makes a case fit, or gives it up."""
        operation: APIOperation[Any, Any, Any, Any] = self.schema[path][method.upper()]
        statuses: list[int] = []

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize=not SOAK,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
        )
        @given(case=operation.as_strategy(mode))
        def each(case: Call) -> None:
            if mend(case) is not None:
                statuses.append(self.call(case).status_code)

        each()
        return statuses

    def call(self, case: Call) -> Any:
        """One call, held to the document.

        What fits may still be no time zone, or the name of what is there already: of changes such
        a refusal is no fault. What doesn't fit may also be longer than any body.
        """
        excluded = [ignored_auth]  # our key is sent along; another test does without
        if case.operation.path not in self.takes_all:
            excluded.append(positive_data_acceptance)
        sending: dict[str, Any] = {
            "session": self._session, "headers": self._headers, "timeout": 60
        }  # fmt: skip
        answer = case.call(**sending)
        length = int(answer.request.headers.get("content-length", 0))
        if answer.status_code == TOO_LONG and length > MAX_BODY_BYTES:
            excluded.append(negative_data_rejection)  # which knows no such refusal
        case.validate_response(
            answer,
            headers=self._headers,
            excluded_checks=excluded,
            transport_kwargs=sending,
        )
        return answer


def misfit(case: Call) -> Call | None:
    """A call that still has a fault once it's a URL.

    Nothing of null, or of an empty list, is sent; and a single text is a list of one.
    """
    lists = {
        parameter["name"]
        for parameter in case.operation.definition.raw.get("parameters", ())
        if parameter["schema"].get("type") == "array"
    }
    query, found = case.query or {}, case.meta.components if case.meta else {}
    if all(info.mode is POSITIVE for place, info in found.items() if place != HEADER):
        return None  # our key is sent, whatever the case has
    has_lists = all(isinstance(query[name], list) for name in lists & query.keys())
    is_sent = all(value not in (None, "", [], {}, [""]) for value in query.values())
    return case if has_lists and is_sent else None


def mended_query(query: dict[str, Any]) -> bool:
    """Whether an export's period is one, which no schema says; its bound has been, from now on."""
    if "bound" in query:
        query["bound"] = 0
    try:
        period_of({name: str(value) for name, value in query.items()}, 1_900_000_000_000_000)
    except BadRequest as fault:
        return fault.message != "start_time: must be before end_time"
    return True
