"""The part of the admin API's document that changes things."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from gateway.admin.changes import shapes
from gateway.admin.changes.audit_log import ENTRY
from gateway.admin.changes.budgets import NewBudget, NewLimit
from gateway.admin.changes.changing import Nothing
from gateway.admin.changes.corrections import NewCorrection
from gateway.admin.changes.keys import NewKey, Rotation
from gateway.admin.changes.leaks import MAX_REPORTS, Report
from gateway.admin.changes.limits import NewLimits, Of
from gateway.admin.changes.tenants import NewProject, NewTenant, TenantChange
from gateway.admin.pages import MAX_LIMIT
from gateway.admin.problems import (
    BadBody,
    BadHeader,
    BadParameter,
    BodyTooLarge,
    Broken,
    Conflict,
    KeyReused,
    NoSuchResource,
    NoSuchRoute,
    NotJson,
    Problem,
    StoreUnreachable,
    Unauthorized,
    WrongHost,
    WrongMethod,
)
from gateway.openapi.document import (
    Operation,
    Schema,
    in_path,
    json_answer,
    json_content,
    listing,
    query,
    ref,
    with_more,
)
from gateway.openapi.shapes import Budget

Kinds = tuple[type[Problem], ...]

GENERAL: Kinds = (BadParameter, Unauthorized, WrongHost, NoSuchRoute, WrongMethod, Broken)
STORE: Kinds = (*GENERAL, StoreUnreachable)
READ: Kinds = (*STORE, NoSuchResource)
CHANGE: Kinds = (*READ, BadHeader, BadBody, Conflict, BodyTooLarge, NotJson, KeyReused)
TEXT: Schema = {"type": "string", "minLength": 1}
TEXT_OR_NULL: Schema = {"anyOf": [TEXT, {"type": "null"}]}
PLACE: dict[str, Schema] = {
    "first_id": TEXT_OR_NULL,
    "last_id": TEXT_OR_NULL,
    "has_more": {"type": "boolean"},
}
LIMIT = query("limit", {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT}, "rows of a page")
AFTER = query("after", TEXT, "a page's `last_id`")
ONCE: Schema = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "the same call again is made once, and answered alike",
    "schema": {"type": "string", "pattern": r"^[\x21-\x7e]{1,255}$"},
}
SAID = {
    "tenant": "a tenant's name",
    "project": "a project's name or id",
    "key": "a key's id",
    "budget": "a budget's id",
    "record": "a usage record's id",
}
TYPES: list[Any] = [
    shapes.OneTenant, shapes.Project, shapes.ApiKey, shapes.NewApiKey, shapes.LimitRule,
    shapes.RecordCorrection, shapes.Leak, shapes.AuditEntry, Budget, NewTenant, TenantChange,
    NewProject, NewKey, Rotation, NewLimits, Of, NewBudget, NewLimit, NewCorrection, Nothing,
]  # fmt: skip


def changes() -> list[Operation]:
    """All of them, and the reads beside them."""
    tenant, key, budget = "tenants/{tenant}", "keys/{key}", "budgets/{budget}"
    report = with_more(Report) | {"additionalProperties": True}  # as GitHub's own may have
    reports = {"type": "array", "items": report, "maxItems": MAX_REPORTS}
    after = query("after", {"type": "string", "pattern": f"^{ENTRY}$"}, "a page's `last_id`")
    of_tenant = query("tenant", TEXT, "one tenant alone, by its name")
    return [
        _change("POST", "tenants", "Add a tenant.", NewTenant, shapes.OneTenant, 201),
        _read(tenant, "One tenant.", ref(shapes.OneTenant)),
        _change("PATCH", tenant, "Change a tenant.", TenantChange, shapes.OneTenant),
        _list(f"{tenant}/projects", "A tenant's projects.", shapes.Project),
        _change("POST", f"{tenant}/projects", "Add one.", NewProject, shapes.Project, 201),
        _change("DELETE", f"{tenant}/projects/{{project}}", "End one.", None, shapes.Project),
        _list(f"{tenant}/keys", "A tenant's keys.", shapes.ApiKey),
        _change("POST", f"{tenant}/keys", "Add one.", NewKey, shapes.NewApiKey, 201),
        _read(key, "One key.", ref(shapes.ApiKey)),
        _change("DELETE", key, "Revoke a key.", None, shapes.ApiKey),
        _change("POST", f"{key}/rotate", "Give it a new secret.", Rotation, shapes.NewApiKey),
        _read(
            f"{tenant}/limits",
            "The limits that were set.",
            listing(ref(shapes.LimitRule), has_more={"type": "boolean"}),
        ),
        _change("PUT", f"{tenant}/limits", "Set some.", NewLimits, shapes.LimitRule),
        _change("DELETE", f"{tenant}/limits", "Forget what was set there.", Of, None, 204),
        _list(f"{tenant}/budgets", "A tenant's budgets.", Budget),
        _change("POST", f"{tenant}/budgets", "Add one.", NewBudget, Budget, 201),
        _read(budget, "One budget.", ref(Budget)),
        _change("PATCH", budget, "Change its limit.", NewLimit, Budget),
        _change("DELETE", budget, "End it.", None, Budget),
        _change(
            "POST",
            "requests/{record}/corrections",
            "Make a record what it should have been.",
            NewCorrection,
            shapes.RecordCorrection,
            201,
        ),
        _change(
            "POST",
            "leaks",
            "Revoke keys that were found in public.",
            reports,
            {"type": "array", "items": ref(shapes.Leak)},
        ),
        _read(
            "audit",
            "Who changed what, the newest first.",
            listing(ref(shapes.AuditEntry), **PLACE),
            LIMIT,
            after,
            of_tenant,
        ),
    ]


def _list(rest: str, summary: str, kind: Any) -> Operation:
    return _read(rest, summary, listing(ref(kind), **PLACE), LIMIT, AFTER)


def _read(rest: str, summary: str, answer: Schema, *parameters: Schema) -> Operation:
    return Operation(
        method="GET",
        path=f"/admin/v1/{rest}",
        name=_name("show" if rest.endswith("}") else "list", rest),
        summary=summary,
        parameters=(*_parts(rest), *parameters),
        answers={200: json_answer(answer)},
        refusals=READ,
    )


def _change(
    method: str, rest: str, summary: str, body: Any, answer: Any, status: int = 200
) -> Operation:
    told = {"description": "Done."} if answer is None else json_answer(answer)
    return Operation(
        method=method,
        path=f"/admin/v1/{rest}",
        name=_name(method.lower(), rest),
        summary=summary,
        parameters=(*_parts(rest), ONCE),
        body=None if body is None else _body(body),
        answers={status: told},
        refusals=CHANGE,
    )


def _body(kind: Any) -> Schema:
    """What a body must have at least decides whether there must be one."""
    has_to = isinstance(kind, dict) or any(field.required for field in msgspec.structs.fields(kind))
    return {"required": has_to, "content": json_content(kind)}


def _parts(rest: str) -> list[Schema]:
    return [in_path(name, SAID[name]) for name in re.findall(r"\{(\w+)\}", rest)]


def _name(verb: str, rest: str) -> str:
    return f"{verb}_" + re.sub(r"/\{\w+\}", "", rest).replace("/", "_")
