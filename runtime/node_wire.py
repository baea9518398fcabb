"""What a node tells of its hosts, and what a gateway tells a node: the words of `node.sock`.

GET /hosts?after=V&wait_s=S&gateway=ID   Hosts, once they differ from version V, or after S seconds;
                                         it also says that this gateway has taken in version V
GET /gone                                GoneHosts: the last counters of hosts that ended lately
PUT /demand/{gateway}                    Demand: what this gateway's requests need, for DEMAND_TTL_S
POST /models/{model}/restart             forget its failures, and replace its hosts, losing nothing;
                                         answered once the gateways know
GET /models/{model}/faults               faults that can be planted in its hosts; `dev` alone
POST /models/{model}/faults/{kind}       plant one in its busiest host
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from engines.api import Stats

DEMAND_EVERY_S = 0.5  # while there is any
DEMAND_TTL_S = 5.0  # what a gateway told counts for so long


class HostState(StrEnum):
    """Where a host is in its life. One that has ended is no longer told of."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"  # takes no new request; what runs there may end


class ModelState(StrEnum):
    """What a request for a model can expect of one node."""

    COLD = "cold"  # no host; a request starts one
    STARTING = "starting"
    READY = "ready"
    WAITING_FOR_MEMORY = "waiting_for_memory"
    FAILED = "failed"  # not tried again before `retry_at`, a deploy or a restart


class HostView(Struct, frozen=True, kw_only=True):
    """A host as its node tells of it. New requests may be sent to it while it is READY."""

    id: str
    model: str
    state: HostState
    socket: str = ""  # where it listens, for a gateway on its machine
    port: int = 0  # where it listens on its node's address, for gateways elsewhere
    pid: int = 0
    rss_bytes: int = 0  # as last measured
    in_flight: int = 0  # requests, as the host said last
    integrity_aborts: int = 0  # requests that a check of their pages stopped, as it said last
    starts: int = 0  # the how manieth host of its model this is, since the node began
    since: float = 0.0  # unix seconds: since when it is in this state
    reason: str = ""  # why it drains


class ModelView(Struct, frozen=True, kw_only=True):
    """A model as its node tells of it."""

    id: str
    state: ModelState
    hosts: int = 0  # that start or are ready
    max_hosts: int = 1
    waiting: int = 0  # requests, all gateways together; so the two below
    in_flight: int = 0
    tokens: int = 0  # at most, of those in flight and waiting
    failures: int = 0  # in a row
    reason: str = ""  # of the last failure, or what it waits for
    retry_at: float = 0.0  # unix seconds: when a host is tried again; 0: nothing holds it back
    retirement: str = ""  # why a host last asked to be replaced, until a restart by hand
    retired_at: float = 0.0  # unix seconds: when it did
    stopped: int = 0  # requests, by a check, on hosts that have ended; until a restart by hand


class GoneHost(Struct, frozen=True, kw_only=True):
    """A host that has ended, and what it had counted."""

    id: str
    model: str
    stats: Stats


class Hosts(Struct, frozen=True, kw_only=True):
    """All hosts and models of a node, at one version.

    A version is new when a state is; the figures in between are as of the answer.
    """

    version: int
    deployment: int = 0  # the number of the deployed configuration
    hosts: list[HostView] = []
    models: list[ModelView] = []


class ModelDemand(Struct, frozen=True, kw_only=True):
    """What one gateway's requests need of one model: the most of each since it told last."""

    waiting: int = 0
    in_flight: int = 0
    tokens: int = 0


class Demand(Struct, frozen=True, kw_only=True):
    """What one gateway's requests need of a node. A model that isn't named needs nothing."""

    models: dict[str, ModelDemand] = {}
