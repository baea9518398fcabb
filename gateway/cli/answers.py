"""What a Bulkhead answers, as far as commands show it to people. What else is there is passed over.

Answers are read as these, so that a server of another kind is told as such, and never by a key that
it doesn't have.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any

from msgspec import Meta, Struct, field

LAST_MOMENT = 253402300799  # the end of the year 9999


class Named(Struct, frozen=True):
    """A tenant, or a project of one."""

    id: str
    name: str


class Key(Struct, frozen=True):
    """A key without its secret. `created`: unix seconds."""

    id: str
    name: str
    hint: str
    created: Annotated[int, Meta(ge=0, le=LAST_MOMENT)]


class Whoami(Struct, frozen=True):
    """`GET /v1/whoami`."""

    tenant: Named
    key: Key | None  # None: a token of an issuer's
    subject: str | None = None
    project: Named | None = None
    scopes: list[str] = []
    models: list[str] | None = None
    expires: Annotated[int, Meta(ge=0, le=LAST_MOMENT)] | None = None


class Process(Struct, frozen=True):
    """One of those that run."""

    role: str
    pid: int


class Status(Struct, frozen=True):
    """`GET /admin/v1/status`."""

    name: str
    env: str
    version: str
    command: str
    pid: int
    processes: list[Process]
    deployment: int | None
    started_at: str
    state: str


class Pricing(Struct, frozen=True):
    """Prices per token."""

    prompt: Decimal
    input_cache_read: Decimal
    completion: Decimal


class Lifecycle(Struct, frozen=True):
    """Whether a model is to stay."""

    status: str


class Model(Struct, frozen=True):
    """One of the catalog."""

    id: str
    alias_of: str | None
    task: str
    context_length: int | None
    pricing: Pricing
    pricing_currency: str
    lifecycle: Lifecycle
    shutdown_date: str | None


class Catalog(Struct, frozen=True):
    """`GET /v1/models`."""

    data: list[Model]


class Kind(Struct, frozen=True, rename="camel"):
    """A field's type, as JSON Schema has it."""

    type: str = "anything"
    enum: list[Any] | None = None
    any_of: list[Kind] = []
    ref: str = field(default="", name="$ref")
    items: Kind | None = None
    minimum: int | float | None = None
    maximum: int | float | None = None
    exclusive_minimum: int | float | None = None


class Body(Struct, frozen=True):
    """What a body may hold."""

    properties: dict[str, Kind] = {}
    required: list[str] = []


class BodySchema(Struct, frozen=True):
    """A JSON Schema whose own type is one of its definitions."""

    ref: str = field(name="$ref")
    definitions: dict[str, Body] = field(name="$defs")

    def __post_init__(self) -> None:
        if self.ref.rpartition("/")[2] not in self.definitions:
            raise ValueError("its type isn't defined")

    @property
    def body(self) -> Body:
        """The type itself."""
        return self.definitions[self.ref.rpartition("/")[2]]


class Endpoint(Struct, frozen=True):
    """What one takes."""

    input: BodySchema


class Endpoints(Struct, frozen=True):
    """`GET /v1/models/{id}/schema`."""

    endpoints: dict[str, Endpoint]


class AttachedServer(Struct, frozen=True):
    """One server of a model that is served by URL, and what went wrong there last."""

    url: str
    is_down: bool = False
    breaker: str = "closed"
    reason: str = ""
    failed_at: float | None = None


class PoolModel(Struct, frozen=True):
    """A model and its hosts, or one of an attached server, which has none. Times: unix seconds."""

    id: str
    state: str
    url: str = ""
    hosts: int = 0
    max_hosts: int = 0
    in_flight: int = 0
    waiting: int = 0
    failures: int = 0
    reason: str = ""
    retry_at: float = 0.0
    retirement: str = ""  # why a host was replaced before its time
    retired_at: float = 0.0
    stopped: int = 0  # requests, by checks, on hosts that have ended
    is_down: bool = False  # an attached server
    failed_at: float | None = None  # when it was `reason`
    servers: tuple[AttachedServer, ...] = ()


class PoolModels(Struct, frozen=True):
    """`GET /admin/v1/models`."""

    data: list[PoolModel]


class Host(Struct, frozen=True):
    """A host. `since`: unix seconds."""

    id: str
    model: str
    state: str
    since: float
    pid: int
    in_flight: int
    rss_bytes: int
    reason: str = ""  # why it drains
    integrity_aborts: int = 0


class Hosts(Struct, frozen=True):
    """`GET /admin/v1/hosts`."""

    data: list[Host]


class Fault(Struct, frozen=True):
    """A kind of fault."""

    kind: str
    number: str
    layer: str
    what: str


class Faults(Struct, frozen=True):
    """`GET /admin/v1/models/{id}/faults`."""

    data: list[Fault]


class Planted(Struct, frozen=True):
    """`POST /admin/v1/models/{id}/faults/{kind}`."""

    host: str
    done: str


class Restart(Struct, frozen=True):
    """`POST /admin/v1/models/{id}/restart`."""

    model: str


class Event(Struct, frozen=True):
    """A request that has ended, of `GET /admin/v1/tail`. Times: milliseconds."""

    timestamp: str = ""
    result: str = ""
    status: int | None = None
    method: str = ""
    path: str = ""
    model: str | None = None
    tenant_name: str | None = None
    code: str | None = None
    input_tokens: int | None = None
    cached_input_tokens: int | None = None
    output_tokens: int | None = None
    ttft_ms: float | None = None
    duration_ms: float | None = None
    dropped: int | None = None
