"""CORS: which web pages may call, and with whose keys.

A tenant lists the origins of its pages. Before the caller is known, any tenant's page may ask
(preflight) and may read a refusal; after that, only the caller's own. Keys travel in a header, so
no credentials in CORS's sense are ever allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from gateway.asgi import Call
from gateway.errors import OriginNotAllowed
from runtime.config.tenants import TenantSettings

ANY = "*"
ALLOW_ORIGIN = b"access-control-allow-origin"
EXPOSE = b"access-control-expose-headers"
EXPOSED = (
    b"x-request-id, retry-after, x-bulkhead-max-tokens, x-bulkhead-fallback, "
    b"x-bulkhead-seq-bound, etag, deprecation, sunset, link, "
    b"ratelimit, ratelimit-policy, "
    b"x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, "
    b"x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"
)
MAX_AGE_S = b"600"
MAX_NAMES_LEN = 4096

# Any header may be sent: what we don't know we don't read. The SDKs send a dozen of their own.
_HEADER_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]+")


class Cors:
    """The origins that tenants list, by the tenant's name."""

    def __init__(self, origins: Mapping[str, frozenset[str]]) -> None:
        self._origins = origins
        self._anyone = frozenset[str]().union(*origins.values())

    def greet(self, call: Call) -> None:
        """Let a page of any tenant read the answer, as long as the caller isn't known."""
        call.extra[b"vary"] = b"Origin"
        self._let_read(call, self._anyone)

    def is_preflight(self, call: Call) -> bool:
        """Whether this is a browser's question before the request itself."""
        return call.scope["method"] == "OPTIONS" and bool(
            call.header(b"origin") and call.header(b"access-control-request-method")
        )

    async def answer_preflight(self, call: Call) -> None:
        """Yes, to the pages of any tenant: a browser sends no key yet. Raises OriginNotAllowed."""
        if ALLOW_ORIGIN not in call.extra:
            raise _refused(call, "no tenant lists it")
        headers = [
            (b"access-control-allow-methods", b"GET, POST"),
            (b"access-control-max-age", MAX_AGE_S),
            (b"vary", b"Access-Control-Request-Method, Access-Control-Request-Headers"),
        ]
        names = call.header(b"access-control-request-headers")[:MAX_NAMES_LEN]
        if _HEADER_NAMES.fullmatch(names):
            headers.append((b"access-control-allow-headers", names.encode()))
        await call.send_empty(204, headers)

    def admit(self, call: Call, tenant: str) -> None:
        """The caller is known: only its own pages. Raises OriginNotAllowed.

        A tenant that lists none is served, but no page can read its answers. What comes from no
        page has no origin, and passes.
        """
        call.extra.pop(ALLOW_ORIGIN, None)
        call.extra.pop(EXPOSE, None)
        origins = self._origins.get(tenant)
        if origins is None or not call.header(b"origin"):
            return
        self._let_read(call, origins)
        if ALLOW_ORIGIN not in call.extra:
            raise _refused(call, "the key's tenant does not list it")

    def _let_read(self, call: Call, origins: frozenset[str]) -> None:
        origin = call.header(b"origin")
        if origin and (origin in origins or ANY in origins):
            call.extra[ALLOW_ORIGIN] = (ANY if ANY in origins else origin).encode()
            call.extra[EXPOSE] = EXPOSED


def cors_of(tenants: Iterable[TenantSettings]) -> Cors | None:
    """The rules of a configuration; None if no tenant lists an origin."""
    origins = {tenant.name: frozenset(tenant.origins) for tenant in tenants if tenant.origins}
    return Cors(origins) if origins else None


def _refused(call: Call, reason: str) -> OriginNotAllowed:
    origin = call.header(b"origin")[:128]
    return OriginNotAllowed(f"the page's origin {origin!r} may not call: {reason}")
