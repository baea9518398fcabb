"""The shapes of what these routes answer key by key, as types, for the admin API's document."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from gateway.openapi.kinds import Count, Decimal, Moment


class OneTenant(Struct):
    """Who is billed."""

    object: Literal["tenant"]
    id: str
    name: str
    demo: bool
    timezone: str
    weight: int
    disabled_at: Moment | None


class Project(Struct):
    """A part of a tenant."""

    object: Literal["project"]
    id: str
    tenant_id: str
    name: str
    created_at: Moment
    archived_at: Moment | None


class ApiKey(Struct):
    """All of a key but its secret. Lists of models and networks: null or empty is any."""

    object: Literal["key"]
    id: str
    tenant_id: str
    name: str
    hint: str
    project: str | None
    scopes: list[str]
    models: list[str] | None
    networks: list[str] | None
    created_at: Moment
    expires_at: Moment | None
    revoked_at: Moment | None
    rotated_at: Moment | None
    grace_until: Moment | None
    last_used_at: Moment | None
    last_used_from: str | None


class NewApiKey(ApiKey):
    """With its secret, which is told this once."""

    secret: str


class RuleScope(Struct):
    """Whose limits they are."""

    kind: Literal["tenant", "project", "key"]
    id: str


class LimitRule(Struct):
    """Numbers that were set; null: the configuration's hold."""

    object: Literal["limit"]
    scope: RuleScope
    model: str | None
    rpm: Count | None
    tpm: Count | None
    concurrent: Count | None


class Money(Struct):
    """An amount, and its ISO 4217 currency."""

    value: Decimal
    currency: str


class RecordCorrection(Struct):
    """A record that makes another one what it should have been."""

    object: Literal["correction"]
    id: str
    corrects: str
    tenant_id: str
    amount: Money
    charge_at: Moment
    is_late: bool


class Leak(Struct):
    """What a report was, as GitHub's secret scanning asks for it."""

    token_hash: str
    token_type: str
    label: Literal["true_positive", "false_positive"]


class AuditEntry(Struct):
    """Who changed what."""

    object: Literal["audit_entry"]
    id: str
    at: Moment
    actor_kind: str
    actor_id: str
    action: str
    target_kind: str
    target_id: str
    tenant_id: str | None
    request_id: str | None
    detail: dict[str, Any]
