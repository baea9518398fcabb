"""The shapes of answers that routes put together key by key, as types, for the document.

Tests hold the two together: what a running gateway answers has these keys, and no others.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from gateway.openapi.kinds import Count, Decimal, UnixTime
from gateway.usage.manifest import Contents


class Error(Struct):
    """What was wrong, where, and what to do."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(Struct):
    """OpenAI's error object."""

    error: Error


class Limit(Struct):
    """How much may be taken and is left; `reset` in seconds, null for `concurrent`."""

    object: Literal["limit"]
    scope: Literal["key", "project", "tenant"]
    model: str | None
    kind: Literal["rpm", "tpm", "concurrent"]
    limit: Count
    remaining: Count
    reset: Count | None


class LimitList(Struct):
    """Of the caller's key, project and tenant."""

    object: Literal["list"]
    data: list[Limit]


class BudgetScope(Struct):
    """Whose requests count."""

    kind: Literal["tenant", "project", "key"]
    id: str


class Window(Struct):
    """The time that runs; `ends_at` null: never."""

    starts_at: UnixTime
    ends_at: UnixTime | None
    spent: Decimal
    held: Decimal
    left: Decimal


class Budget(Struct):
    """What may be spent, and was."""

    object: Literal["budget"]
    id: str
    tenant_id: str
    scope: BudgetScope
    model: str | None
    period: Literal["daily", "monthly", "total"]
    currency: str
    limit: Decimal
    alerts: list[int]
    created_at: UnixTime
    archived_at: UnixTime | None
    window: Window


class BudgetList(Struct):
    """Those that the caller's requests count in."""

    object: Literal["list"]
    data: list[Budget]


class Named(Struct):
    """Somebody or something."""

    id: str
    name: str


class Key(Named):
    """An API key: never its secret."""

    hint: str
    created: UnixTime


class TokenName(Struct):
    """A minted token."""

    id: str


class Whoami(Struct):
    """Who is calling, and what they may; null: any, or none."""

    object: Literal["whoami"]
    tenant: Named
    key: Key | None
    token: TokenName | None
    subject: str | None
    project: Named | None
    scopes: list[str]
    models: list[str] | None
    networks: list[str] | None
    origin: str | None
    expires: UnixTime | None


class Token(Struct):
    """A token that was minted: it is told this once."""

    object: Literal["token"]
    id: str
    token: str
    key_id: str
    expires_at: UnixTime
    scopes: list[str]
    models: list[str] | None
    origin: str | None


class SignedManifest(Struct):
    """What an export's files hold, and who says so; key and signature in base64."""

    object: Literal["bulkhead.export.manifest"]
    contents: Contents
    public_key: str
    signature: str
