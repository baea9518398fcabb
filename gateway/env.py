"""The objects that handlers are given, built once in `app`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from anyio import CapacityLimiter
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.catalog.catalog import Catalog
from gateway.clock import Clock
from gateway.cors import Cors
from gateway.cursors import Cursors
from gateway.events import EventSender
from gateway.identity.auth import Authenticator
from gateway.identity.last_used import LastUsed
from gateway.identity.networks import Proxies
from gateway.in_flight import InFlight
from gateway.ledger import Ledger
from gateway.limits.admission import Admission
from gateway.money.book import PriceBook
from gateway.payloads.payloads import Payloads
from gateway.pulse import Pulse
from gateway.relay.hosts import HostDirectory
from gateway.relay.relay import Relay
from gateway.store.address import Database
from gateway.store.directory import KeyDirectory
from gateway.telemetry.telemetry import Telemetry
from gateway.usage.names import Names
from runtime.config.limits import LimitSettings
from runtime.config.observability import ObservabilitySettings
from runtime.config.route_patterns import Matches


@dataclass(frozen=True, slots=True)
class Env:
    """One gateway process's parts."""

    admission: Admission
    auth: Authenticator
    catalog: Catalog
    clock: Clock
    directory: KeyDirectory
    events: EventSender
    hosts: HostDirectory
    last_used: LastUsed
    ledger: Ledger
    relay: Relay
    database: Database
    report_threads: CapacityLimiter  # for usage and exports, so that they can't take them all
    in_flight: InFlight
    pulse: Pulse
    telemetry: Telemetry
    payloads: Payloads
    limits: LimitSettings
    observability: ObservabilitySettings
    prices: PriceBook
    config_hash: str  # of the text that was deployed; on every record
    proxies: Proxies
    cors: Cors | None  # None: no page of a tenant may call
    is_routed: Matches | None  # None: answered everywhere
    keep_alive_s: float
    bill_names: Names
    cursors: Cursors
    manifest_key: Ed25519PrivateKey  # exports are signed with it
    newest: Callable[[], Env] | None = None  # None: the settings never change

    def in_force(self) -> Env:
        """What a request is given that comes now: another Env, after a deploy."""
        return self.newest() if self.newest else self
