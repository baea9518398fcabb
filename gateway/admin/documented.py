"""The document of `/admin/v1`: every route, what it takes and gives, and how it refuses."""

from __future__ import annotations

import functools
import re
from typing import Any

import msgspec

from engines.api import DomainPages, FaultKind, PageMap
from gateway.admin import shapes
from gateway.admin.changes import documented as changed
from gateway.admin.filters import RESULTS
from gateway.admin.pages import MAX_LIMIT
from gateway.admin.problems import (
    TABLE,
    FaultImpossible,
    HostUnreachable,
    NodeUnreachable,
    NoPages,
    NoSuchFault,
    NoSuchHost,
    NoSuchModel,
    NotDevelopment,
    Problem,
    TooManyTails,
)
from gateway.admin.reads import RECORD
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
    with_more,
)
from gateway.openapi.exports import FILE, FORM, MANIFEST, PERIOD
from gateway.openapi.shapes import SignedManifest
from runtime.node_wire import HostState, HostView, ModelState, ModelView

Kinds = tuple[type[Problem], ...]

GENERAL, STORE = changed.GENERAL, changed.STORE
NODE: Kinds = (*GENERAL, NodeUnreachable)
FAULTS: Kinds = (*NODE, NotDevelopment, NoSuchModel, NoSuchFault, FaultImpossible)
MODEL = in_path("model", "a model's id; slashes in it may be sent as they are")
TEXT: Schema = {"type": "string", "minLength": 1}
TENANT = query("tenant", TEXT, "one tenant alone, by its name")
TYPES: list[Any] = [
    shapes.ProblemAnswer,
    shapes.Status,
    shapes.AttachedModel,
    shapes.PlantedFault,
    shapes.Restart,
    shapes.Request,
    shapes.Tenant,
    DomainPages,
    HostState,
    ModelState,
    SignedManifest,
]


def admin_document() -> Schema:
    """What `GET /admin/v1/openapi.json` answers."""
    key = "The admin key, from `admin-key` in the state folder."
    operations = (*_reads(), *_models(), *_ledger(), *changed.changes())
    return document(
        "Bulkhead, the operator's side", key, operations, [*TYPES, *changed.TYPES], REFUSALS
    )


@functools.cache
def encoded() -> bytes:
    """The same as JSON, made when it is first asked for."""
    return msgspec.json.encode(admin_document())


def _row(kind: type[Any]) -> tuple[int, list[str]]:
    row = TABLE[kind]
    return row.status, [row.name]


def _refusal(names: list[str]) -> Schema:
    kinds = {"enum": [f"urn:bulkhead:problem:{name}" for name in names]}
    schema = {"allOf": [ref(shapes.ProblemAnswer)], "properties": {"type": kinds}, "type": "object"}
    return json_content(schema, "application/problem+json")


REFUSALS = Refusals(_row, _refusal)


def _get(
    rest: str, summary: str, answer: Schema, refusals: Kinds, *parameters: Schema
) -> Operation:
    return Operation(
        method="GET",
        path=f"/admin/v1/{rest}",
        name="read_" + re.sub(r"/\{\w+\}|\.json", "", rest).replace("/", "_"),
        summary=summary,
        parameters=parameters,
        answers={200: answer},
        refusals=refusals,
    )


def _reads() -> list[Operation]:
    attached = {"type": "array", "items": ref(shapes.AttachedModel)}
    hosts = listing(
        with_more(HostView, object={"const": "host"}),
        deployment={"type": "integer"},
        attached=attached,
    )
    pages = with_more(
        PageMap, object={"const": "page_map"}, host={"type": "string"}, model={"type": "string"}
    )
    metrics: Schema = {
        "description": "Prometheus' text.",
        "content": {"text/plain": {"schema": {"type": "string"}}},
    }
    return [
        _get("openapi.json", "This document.", json_answer({"type": "object"}), GENERAL),
        _get("status", "What runs here.", json_answer(shapes.Status), GENERAL),
        _get("hosts", "The node's hosts, and attached servers.", json_answer(hosts), NODE),
        _get(
            "hosts/{id}/pages",
            "Where each page of a host's pool is.",
            json_answer(pages),
            (*NODE, NoSuchHost, NoPages, HostUnreachable),
            in_path("id", "a host's id"),
        ),
        _get("metrics", "What gateways and hosts have counted.", metrics, NODE),
    ]


def _models() -> list[Operation]:
    ours = with_more(ModelView, object={"const": "model"})
    attached = with_more(shapes.AttachedModel, object={"const": "model"})
    models = listing({"anyOf": [ours, attached]}, deployment={"type": "integer"})
    kinds = listing(with_more(FaultKind, object={"const": "fault"}))
    return [
        _get("models", "The models, ours and attached.", json_answer(models), NODE),
        _get("models/{model}/faults", "What can be planted.", json_answer(kinds), FAULTS, MODEL),
        Operation(
            method="POST",
            path="/admin/v1/models/{model}/faults/{kind}",
            name="plant_fault",
            summary="Plant one, on a development machine.",
            parameters=(MODEL, in_path("kind", "a fault's kind")),
            answers={200: json_answer(shapes.PlantedFault)},
            refusals=FAULTS,
        ),
        Operation(
            method="POST",
            path="/admin/v1/models/{model}/restart",
            name="restart_model",
            summary="Forget a model's failures and replace its hosts, losing no request.",
            parameters=(MODEL,),
            answers={202: json_answer(shapes.Restart)},
            refusals=(*NODE, NoSuchModel),
        ),
    ]


def _ledger() -> list[Operation]:
    place = {"first_id": _or_null(TEXT), "last_id": _or_null(TEXT), "has_more": {"type": "boolean"}}
    return [
        _get(
            "requests",
            "The last requests, from the ledger, newest first.",
            json_answer(listing(ref(shapes.Request), **place)),
            STORE,
            query("after", {"type": "string", "pattern": f"^{RECORD}$"}, "a page's `last_id`"),
            query("limit", {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT}, "20"),
        ),
        _get("tail", "Requests as they end.", _events(), (*GENERAL, TooManyTails), *_filters()),
        _get(
            "tenants",
            "Who is billed, by name.",
            json_answer(listing(ref(shapes.Tenant), **place)),
            STORE,
        ),
        _get("usage/export", "Records or charges.", FILE, STORE, *PERIOD, *FORM, TENANT),
        _get(
            "usage/export/manifest",
            "What that export holds, signed.",
            MANIFEST,
            STORE,
            *PERIOD,
            *FORM,
            TENANT,
        ),
    ]


def _events() -> Schema:
    told = with_more(shapes.Event) | {"additionalProperties": True}
    text = {"type": "string", "contentMediaType": JSON, "contentSchema": told}
    event = {
        "type": "object",
        "properties": {"event": {"const": "request"}, "data": text},
        "required": ["event", "data"],
    }
    return {
        "description": "For as long as the client stays. The comment `: listening` comes first.",
        "content": json_content(event, "text/event-stream"),
    }


def _filters() -> list[Schema]:
    results = {"type": "array", "items": {"enum": list(RESULTS)}}
    rate = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
    return [
        query("status", results, "only these"),
        query("model", TEXT, "only this"),
        query("tenant", TEXT, "only this, by name or id"),
        query("search", TEXT, "in any value, whatever its case"),
        query("sampling_rate", rate, "which part of all"),
    ]


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}
