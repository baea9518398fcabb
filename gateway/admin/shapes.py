"""The shapes of what the admin API answers key by key, as types, for its document.

Tests hold the two together: what a running process answers has these keys, and no others.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from gateway.billing import BillReason, Outcome, UsageSource
from gateway.events import Result
from gateway.openapi.kinds import Count, Moment
from runtime.deploy.running import Role

Breaker = Literal["closed", "open", "half-open"]


class ProblemAnswer(Struct):
    """RFC 9457; `instance` is the request's id."""

    type: str
    title: str
    status: int
    detail: str
    instance: str


class Process(Struct):
    """One that runs; `deployment` null: it is starting."""

    role: Role
    pid: int
    deployment: int | None
    fault: str | None


class Certificate(Struct):
    """Until when a listener's is good; with `fault` alone it can't be read."""

    file: str
    fault: str = ""
    names: list[str] = []
    not_after: Moment = ""
    days_left: float = 0
    fingerprint: str = ""


class Certificates(Struct):
    """By listener; null: plain HTTP."""

    server: Certificate | None
    admin: Certificate | None
    node: Certificate | None


class Status(Struct):
    """What runs here."""

    object: Literal["status"]
    version: str
    name: str
    env: str
    command: str
    pid: int
    started_at: Moment
    uptime_s: float
    config: str | None
    state: str
    deployment: int | None
    config_hash: str
    store: str
    processes: list[Process]
    certificates: Certificates


class Server(Struct):
    """One attached by URL, and what went wrong with it last; times in Unix seconds."""

    url: str
    is_down: bool
    breaker: Breaker
    guard: str  # why the guard in it isn't trusted; "": it is, or there is none
    reason: str
    failed_at: float | None


class AttachedModel(Struct):
    """A model that such servers serve."""

    id: str
    state: Literal["attached"]
    url: str
    is_down: bool
    reason: str
    failed_at: float | None
    servers: list[Server]


class PlantedFault(Struct):
    """Where it was planted, and what was done."""

    object: Literal["planted_fault"]
    model: str
    host: str
    kind: str
    done: str


class Restart(Struct):
    """It has begun."""

    object: Literal["restart"]
    model: str


class Request(Struct):
    """A record of the ledger; null: not known yet, or never."""

    id: str
    object: Literal["request"]
    request_id: str
    state: str
    outcome: Outcome | None
    status: int | None
    tenant: str
    tenant_name: str
    key: str | None
    model: str
    operation: str
    streamed: bool
    host: str | None
    finish_reason: str | None
    input_tokens: Count | None
    cached_input_tokens: Count | None
    output_tokens: Count | None
    usage_source: UsageSource | None
    billable: bool | None
    bill_reason: BillReason | None
    opened_at: Moment
    ended_at: Moment | None
    ttft_ms: float | None
    duration_ms: float | None


class Tenant(Struct):
    """Who is billed."""

    id: str
    object: Literal["tenant"]
    name: str
    demo: bool
    timezone: str
    weight: int
    disabled_at: Moment | None
    created_at: Moment
    live_keys: Count


class Event(Struct):
    """A request that has ended. What isn't known of it is left out; there may be more."""

    event: Literal["request"]
    timestamp: Moment
    result: Result
    request_id: str
    method: str
    path: str
    status: int
    duration_ms: float
