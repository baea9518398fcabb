"""The config file's sections: their keys, types, defaults, and the rules across them.

`docs/config.md` says what each key is for. A struct's `faults` are told together with those of its
types (`check`). `[[models]]` is in `models`; environments are in `environments`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from msgspec import Struct

from runtime.config import cron
from runtime.config.alerts import AlertSettings
from runtime.config.environments import DEFAULT_NAME
from runtime.config.footprint import memory_faults
from runtime.config.issuers import IssuerSettings, issuer_faults
from runtime.config.kinds import (
    Count,
    Host,
    Name,
    Number,
    Pause,
    Port,
    PortOrNone,
    Seconds,
    SecretName,
    is_http_url,
)
from runtime.config.limits import LimitSettings
from runtime.config.models import (
    ModelSettings,
    fallback_faults,
    has_nameless,
    name_faults,
    names_of,
)
from runtime.config.networks import proxy_fault
from runtime.config.observability import ObservabilitySettings
from runtime.config.report import did_you_mean
from runtime.config.route_patterns import BadPattern, parse_route
from runtime.config.store import StoreSettings
from runtime.config.tenants import TenantSettings, tenant_faults
from runtime.config.tls import ClientTls, ServerTls


class ServerSettings(Struct, frozen=True, kw_only=True):
    """The public listener."""

    host: Host = "127.0.0.1"
    port: Port = 8787
    drain_s: Seconds = 30.0
    trusted_proxies: tuple[str, ...] = ()  # whose X-Forwarded-For is believed: networks, "unix"
    tls: ServerTls = ServerTls()

    @staticmethod
    def faults(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """Proxies are networks."""
        for i, proxy in enumerate(found.get("trusted_proxies") or ()):
            if proxy is not None and (fault := proxy_fault(proxy)):
                yield f"trusted_proxies[{i}]", fault


class AdminSettings(Struct, frozen=True, kw_only=True):
    """The operator's listener. Its key is in the state folder."""

    host: Host = "127.0.0.1"
    port: PortOrNone = 8788  # 0: none
    names: tuple[str, ...] = ()  # it may be called by, beside localhost, `host` and addresses
    tls: ServerTls = ServerTls()


class RelaySettings(Struct, frozen=True, kw_only=True):
    """How long the gateway waits for an engine, in seconds."""

    connect_s: Seconds = 5.0
    start_s: Seconds = 60.0  # for a host to be ready
    first_byte_s: Seconds = 300.0
    idle_s: Seconds = 60.0  # between two chunks of one answer
    keep_alive_s: Seconds = 5.0  # silence on a stream before a comment is sent
    probe_every_s: Pause = 60.0  # an attached server's silence before it is asked for a token
    probe_s: Seconds = 20.0  # for that token


class HostSettings(Struct, frozen=True, kw_only=True):
    """How hosts are watched, and what they share."""

    start_s: Seconds = 120.0
    health_every_s: Seconds = 5.0
    health_timeout_s: Seconds = 10.0
    backoff_first_s: Seconds = 0.5
    backoff_max_s: Seconds = 30.0
    max_failures: Count = 5  # in a row; then the model has failed
    retry_failed_s: Seconds = 300.0  # after so long, a request has a failed model tried again
    memory_bytes: Number = 0  # for all hosts together; 0: what this machine has
    yield_s: Seconds = 10.0  # a model that waited so long for memory takes a busy one's


class NodeSettings(Struct, frozen=True, kw_only=True):
    """This machine's node for gateways on other machines. They must show a certificate."""

    host: Host = "127.0.0.1"
    port: PortOrNone = 0  # 0: only on this machine, through a socket
    tls: ServerTls = ServerTls()

    @staticmethod
    def faults(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """Whoever may reach a node over the network is known by a certificate."""
        tls = found.get("tls", ServerTls())
        if found.get("port") and tls and "" in (tls.cert, tls.client_ca):
            yield "tls", "a node on a port needs `cert`, `key` and `client_ca`"


class RemoteNodeSettings(Struct, frozen=True, kw_only=True):
    """A node on another machine, whose hosts this gateway uses."""

    url: str
    tls: ClientTls = ClientTls()

    @staticmethod
    def faults(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """The way to it is authenticated at both ends."""
        url, tls = found.get("url"), found.get("tls")
        if url is not None and not (is_http_url(url) and url.startswith("https://")):
            yield "url", "expected an https:// URL"
        if "tls" not in found or (tls and tls.cert == ""):
            yield "tls.cert", "a remote node asks for a client certificate"


class CronSettings(Struct, frozen=True, kw_only=True):
    """A job and when it runs, in UTC."""

    cron: str  # five fields, as in crontab(5)
    run: Literal["backup", "usage-export", "warm"]
    to: str = ""  # backup, usage-export: the folder
    keep: Count = 7  # backup: so many files
    format: Literal["csv", "jsonl", "focus", "parquet"] = "csv"  # usage-export, as the next ones
    focus_version: Literal["1.2", "1.4"] = "1.2"
    granularity: Literal["hour", "request"] = "hour"  # of focus and parquet
    period: Literal["since-last", "last-hour", "yesterday", "last-month"] = "since-last"
    tenants: Literal["each", "together"] = "each"  # a file for each, or one
    model: str = ""  # warm: the model to start

    @staticmethod
    def faults(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """An expression that can be, and what the job needs."""
        if found.get("cron") is not None and (wrong := cron.fault(found["cron"])):
            yield "cron", wrong
        needs = {"backup": "to", "usage-export": "to", "warm": "model"}.get(found.get("run") or "")
        if needs and found.get(needs, "") == "":
            yield needs, f'is missing: "{found["run"]}" needs it'


class ExportSettings(Struct, frozen=True, kw_only=True):
    """Whose bill an export is, by FOCUS's columns. Empty: the name of this installation."""

    issuer: str = ""  # InvoiceIssuerName
    provider: str = ""  # ProviderName, ServiceProviderName; empty: the issuer
    publisher: str = ""  # PublisherName; empty: the provider
    host: str = ""  # HostProviderName; empty: the provider
    service: str = "Text Generation"  # ServiceName
    region: str = ""  # RegionId
    region_name: str = ""  # RegionName; empty: the region


class TriggerSettings(Struct, frozen=True, kw_only=True):
    """What happens by the clock."""

    crons: tuple[CronSettings, ...] = ()


class SecretSettings(Struct, frozen=True, kw_only=True):
    """The secrets that must be there. Their values are never in this file."""

    required: tuple[SecretName, ...] = ()


class FileSettings(Struct, frozen=True, kw_only=True):
    """The config file, as it stands for one environment."""

    name: Name = DEFAULT_NAME
    server: ServerSettings = ServerSettings()
    admin: AdminSettings = AdminSettings()
    store: StoreSettings = StoreSettings()
    relay: RelaySettings = RelaySettings()
    hosts: HostSettings = HostSettings()
    node: NodeSettings = NodeSettings()
    nodes: tuple[RemoteNodeSettings, ...] = ()
    limits: LimitSettings = LimitSettings()
    observability: ObservabilitySettings = ObservabilitySettings()
    export: ExportSettings = ExportSettings()
    triggers: TriggerSettings = TriggerSettings()
    alerts: AlertSettings = AlertSettings()
    routes: tuple[str, ...] = ()  # where this gateway answers, such as "ai.example.com/*"
    vars: dict[str, Any] = {}  # for `${NAME}` in the values of this file
    secrets: SecretSettings = SecretSettings()
    tenants: tuple[TenantSettings, ...] = ()
    issuers: tuple[IssuerSettings, ...] = ()
    models: tuple[ModelSettings, ...] = ()

    @staticmethod
    def faults(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """No two models have one name, and what is said of others is said of some.

        None stands for what has other faults, here and within.
        """
        models = found.get("models") or ()
        yield from name_faults(models)
        yield from fallback_faults(models)
        yield from tenant_faults(found.get("tenants") or (), models)
        yield from issuer_faults(found.get("issuers") or ())
        yield from warm_faults(found.get("triggers"), models)
        yield from backup_faults(found.get("triggers"), found.get("store"))
        yield from memory_faults(models, (found.get("hosts") or HostSettings()).memory_bytes or 0)
        for i, route in enumerate(found.get("routes") or ()):
            try:
                parse_route(route or "*/*")
            except BadPattern as fault:
                yield f"routes[{i}]", str(fault)


def backup_faults(
    triggers: TriggerSettings | None, store: StoreSettings | None
) -> Iterator[tuple[str, str]]:
    """What is backed up is a file of ours."""
    for i, job in enumerate((triggers.crons if triggers else ()) or ()):
        if getattr(job, "run", "") == "backup" and store and store.url:
            told = '"backup" is for SQLite; this store is PostgreSQL\'s: back it up with pg_dump'
            yield f"triggers.crons[{i}].run", told


def warm_faults(
    triggers: TriggerSettings | None, models: Sequence[ModelSettings | None]
) -> Iterator[tuple[str, str]]:
    """What is warmed is a model of ours."""
    attached = {name: model.is_attached for model in models if model for _, name in names_of(model)}
    for i, job in enumerate((triggers.crons if triggers else ()) or ()):
        if getattr(job, "run", "") != "warm" or not job.model:
            continue
        if job.model not in attached:
            if any(map(has_nameless, models)):
                continue
            hint = did_you_mean(job.model, attached, '"')
            yield f"triggers.crons[{i}].model", f"there is no model {job.model!r}{hint}"
        elif attached[job.model]:
            yield f"triggers.crons[{i}].model", f"{job.model!r} is an attached server's: no host"
