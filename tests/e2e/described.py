"""Calls made up from an OpenAPI document, each answer held against what the document says."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import ignored_auth

from tests.stack import SOAK

POSITIVE, NEGATIVE = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
METHODS = ("get", "post")
EXAMPLES = 400 if SOAK else 30

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

    def __init__(self, document: Document, url: str, key: str) -> None:
        self.schema = schemathesis.openapi.from_dict(strict(document))
        self.schema.config.update(base_url=url)
        self.schema.config.max_stream_events = 10_000  # read streams to their end
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
        """One call, held to the document."""
        return case.call_and_validate(
            session=self._session,
            headers=self._headers,
            timeout=60,
            excluded_checks=[ignored_auth],  # it sends our key along; another test does without
        )
