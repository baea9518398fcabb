"""The config's `[limits]`: what one request may take, and how much each tenant, key and model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal
from urllib.parse import SplitResult, urlsplit

from msgspec import Meta, Struct

from runtime.config.kinds import MIB, Count, Name, OptionalSecret, Seconds
from runtime.config.tls import ClientTls

Rate = Annotated[int, Meta(ge=0, le=10**12)]
Places = Annotated[int, Meta(ge=0, le=10**6)]
SCHEMES = ("redis", "rediss", "unix")


class RateSettings(Struct, frozen=True, kw_only=True):
    """How much: so many requests and tokens a minute, and requests at once. 0: no limit."""

    rpm: Rate = 0
    tpm: Rate = 0
    concurrent: Places = 0
    fail: Literal["", "local", "closed"] = ""  # without Redis; "": as `limits.redis` says


class TenantRateSettings(RateSettings, frozen=True, kw_only=True):
    """One tenant's, at all models together or at one."""

    model: str = ""


class RedisSettings(Struct, frozen=True, kw_only=True):
    """Where several gateway processes count together."""

    url: str = ""  # "": each process counts alone
    password_secret: OptionalSecret = ""  # the secret that holds its password
    timeout_s: Seconds = 0.25  # a request waits no longer for it
    name: Name = "bulkhead"  # of this installation's keys there
    fail: Literal["local", "closed"] = "local"  # without it: each its share, or nothing
    tls: ClientTls = ClientTls()  # of rediss://

    @staticmethod
    def faults(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """A URL that a client takes, without a secret in it."""
        url = found.get("url")
        if not url:
            return
        parts = urlsplit(url)
        if not _is_redis(parts):
            yield "url", "expected a redis://, rediss:// or unix:// URL"
        elif parts.password or "password=" in parts.query:
            yield "url", "a password doesn't belong here; name its secret in `password_secret`"
        elif parts.username and found.get("password_secret", "") == "":
            yield "password_secret", "is missing beside the user in `url`"
        if found.get("tls") not in (None, ClientTls()) and parts.scheme != "rediss":
            yield "tls", "is of a rediss:// URL alone"


def _is_redis(url: SplitResult) -> bool:
    """A server, and the number of a database of its own if there's one."""
    try:
        database = url.path.strip("/") if url.scheme != "unix" else ""
        return url.scheme in SCHEMES and url.port != 0 and (database or "0").isdecimal()
    except ValueError:  # no port
        return False


class LimitSettings(Struct, frozen=True, kw_only=True):
    """What one request, and all of them together, may take."""

    max_body_bytes: Annotated[int, Meta(ge=1024, le=64 * MIB)] = 4 * MIB
    body_s: Seconds = 60.0  # for a request's body to be sent whole
    max_requests: Count = 4096  # at once, in one gateway
    wall_s: Seconds = 3600.0  # of one request, its waiting included
    replicas: Count = 1  # gateway processes, among which limits are shared that aren't in Redis
    per_tenant: RateSettings = RateSettings()
    per_key: RateSettings = RateSettings()
    redis: RedisSettings = RedisSettings()
