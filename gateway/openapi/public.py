"""The document of `/v1`: every route, what it takes and gives, and all the ways it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from gateway.catalog.filters import FILTERS, KNOWN as KNOWN_FILTERS, LISTS
from gateway.catalog.schema import endpoint_schemas
from gateway.errors import MORE_CODES, TABLE, Unsupported
from gateway.identity.tokens import TokenFields
from gateway.openapi import model_shapes, shapes
from gateway.openapi.document import (
    JSON,
    Operation,
    Refusals,
    Schema,
    document,
    in_path,
    json_answer,
    json_content,
    listing,
    query,
    ref,
)
from gateway.openapi.exports import FILE, FORM, MANIFEST, PERIOD
from gateway.openapi.refused import BODY, COMPLETION, GENERAL, MODEL, OPEN, SCOPED, Kinds
from gateway.schema import ENDPOINTS
from gateway.usage.page import MOST_BUCKETS, UsagePage
from gateway.usage.sums import MOST_VALUES, Grouped

EVENTS = "text/event-stream"
ETAG = {"etag": {"schema": {"type": "string"}, "required": True}}
UNCHANGED = {"description": "Nothing has changed since the ETag that was sent.", "headers": ETAG}
MODEL_ID = in_path("id", "a model's id or alias; slashes in it may be sent as they are")
VIEWS: list[Any] = [
    model_shapes.Model,
    model_shapes.HealthyModel,
    model_shapes.OpenAIModel,
    model_shapes.OpenRouterModel,
]
TYPES: list[Any] = [
    *VIEWS,
    shapes.ErrorAnswer,
    model_shapes.ModelSchema,
    model_shapes.PriceList,
    shapes.LimitList,
    shapes.BudgetList,
    shapes.Whoami,
    shapes.Token,
    shapes.SignedManifest,
    TokenFields,
    UsagePage,
]


def public_document() -> Schema:
    """What `GET /v1/openapi.json` answers."""
    key = "An API key, a token minted by one, or a JWT of an issuer that the operator trusts."
    operations = (*_completions(), *_models(), *_usage(), *_caller(), _itself())
    return document("Bulkhead", key, operations, TYPES, Refusals(_row, _refusal))


def _row(kind: type[Any]) -> tuple[int, list[str]]:
    row = TABLE[kind]
    return row.status, [row.code, *MORE_CODES.get(kind, ())]


def _refusal(codes: list[str]) -> Schema:
    error = {"properties": {"code": {"enum": codes}}}
    return json_content(
        {"allOf": [ref(shapes.ErrorAnswer)], "properties": {"error": error}, "type": "object"}
    )


def _completions() -> list[Operation]:
    return [
        Operation(
            method="POST",
            path=path,
            name=f"complete_{endpoint.fields.__name__.removesuffix('Fields').lower()}",
            summary="An answer of a model, whole or, with `stream`, as events.",
            body={"required": True, "content": json_content(schemas["input"])},
            answers={200: _answer(schemas)},
            refusals=COMPLETION,
        )
        for (path, endpoint), schemas in zip(
            ENDPOINTS.items(), endpoint_schemas().values(), strict=True
        )
    ]


def _answer(schemas: dict[str, Schema]) -> Schema:
    """An event's data is the text of a JSON document, but for that of the last one."""
    said = {"anyOf": [schemas["stream"], ref(shapes.ErrorAnswer)]}
    text = {"type": "string", "contentMediaType": JSON, "contentSchema": said}
    event = {
        "type": "object",
        "properties": {"data": {"anyOf": [{"const": "[DONE]"}, text]}},
        "required": ["data"],
    }
    return {
        "description": "The answer. Events end with `data: [DONE]`; without, the answer failed.",
        "content": json_content(schemas["output"]) | json_content(event, EVENTS),
    }


def _models() -> list[Operation]:
    views = [
        model_shapes.Model,
        model_shapes.HealthyModel,
        model_shapes.OpenAIModel,
        model_shapes.OpenRouterModel,
    ]
    one = {"anyOf": [ref(view) for view in views]}
    view = query("view", {"enum": ["openai", "openrouter", "full"]}, "which keys; else ours")
    filters = [query(name, _filter(name), "only those models") for name in (*FILTERS, *LISTS)]
    return [
        _model(
            "list_models", "", "The models that this key may use.", listing(one), [view, *filters]
        ),
        _model("show_model", "/{id}", "One of them.", one, [MODEL_ID, view]),
        _model(
            "show_prices",
            "/{id}/prices",
            "What it has cost, costs and is going to.",
            model_shapes.PriceList,
            [MODEL_ID],
        ),
        _model(
            "show_schema",
            "/{id}/schema",
            "What its endpoints take and give, as JSON Schema.",
            model_shapes.ModelSchema,
            [MODEL_ID],
        ),
    ]


def _model(
    name: str, rest: str, summary: str, kind: Any, parameters: Sequence[Schema]
) -> Operation:
    return Operation(
        method="GET",
        path=f"/v1/models{rest}",
        name=name,
        summary=summary,
        parameters=tuple(parameters),
        answers={200: json_answer(kind) | {"headers": ETAG}, 304: UNCHANGED},
        refusals=(*SCOPED, MODEL) if rest else SCOPED,
    )


def _filter(name: str) -> Schema:
    if name not in KNOWN_FILTERS:
        return {"type": "string"}
    choice = {"enum": sorted(KNOWN_FILTERS[name])}
    return {"type": "array", "items": choice} if name in LISTS else choice


def _usage() -> list[Operation]:
    values = {"type": "string", "pattern": "^[^,]+(,[^,]+)*$"}  # one may be several, none is empty
    few = {"type": "array", "items": values, "maxItems": MOST_VALUES}
    most = max(MOST_BUCKETS.values())
    groups = {"type": "array", "items": {"enum": list(get_args(Grouped))}}
    return [
        _read(
            "usage",
            "The tenant's usage by bucket.",
            json_answer(UsagePage),
            *PERIOD,
            query("bucket_width", {"enum": list(MOST_BUCKETS)}, "1d unless told"),
            query("group_by", groups, "model unless told"),
            query("models", few, "only these"),
            query("project_ids", few, "only these"),
            query("api_key_ids", few, "only these"),
            query("limit", {"type": "integer", "minimum": 1, "maximum": most}, "buckets; 31 days"),
            query("page", {"type": "string"}, "`next_page` of the answer before"),
        ),
        _read("usage/export", "Records or charges.", FILE, *PERIOD, *FORM, more=(Unsupported,)),
        _read(
            "usage/export/manifest",
            "What that export holds, signed.",
            MANIFEST,
            *PERIOD,
            *FORM,
            more=(Unsupported,),
        ),
        _read("budgets", "What may still be spent.", json_answer(shapes.BudgetList)),
        _read("limits", "How much may be taken.", json_answer(shapes.LimitList)),
    ]


def _read(
    rest: str, summary: str, answer: Schema, *parameters: Schema, more: Kinds = ()
) -> Operation:
    return Operation(
        method="GET",
        path=f"/v1/{rest}",
        name=f"read_{rest.replace('/', '_')}",
        summary=summary,
        parameters=parameters,
        answers={200: answer},
        refusals=(*SCOPED, *more),
    )


def _caller() -> list[Operation]:
    return [
        Operation(
            method="GET",
            path="/v1/whoami",
            name="whoami",
            summary="The caller: its tenant, its key, and what it may.",
            answers={200: json_answer(shapes.Whoami)},
            refusals=GENERAL,
        ),
        Operation(
            method="POST",
            path="/v1/tokens",
            name="mint_token",
            summary="A short-lived token for the caller's own web pages.",
            body={"content": json_content(TokenFields)},
            answers={200: json_answer(shapes.Token)},
            refusals=(*SCOPED, *BODY, MODEL),
        ),
    ]


def _itself() -> Operation:
    return Operation(
        method="GET",
        path="/v1/openapi.json",
        name="openapi",
        summary="This document.",
        answers={200: json_answer({"type": "object"}) | {"headers": ETAG}, 304: UNCHANGED},
        refusals=OPEN,
        is_open=True,
    )
