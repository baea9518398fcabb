"""Who is calling: `Authorization: Bearer bh_live_…` becomes a principal, or a 401."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b32encode

from gateway.clock import Clock
from gateway.errors import StoreDown, Unauthorized
from gateway.identity import keys
from gateway.store.directory import KeyDirectory, Principal
from gateway.store.errors import StoreUnavailable
from gateway.store.second_look import SecondLook

HELP = "send a valid API key as `Authorization: Bearer bh_live_…`"
UNCHECKED = "keys can't be checked just now; try again"


class Authenticator:
    """Checks keys against the directory in memory; one text for every bad key."""

    def __init__(
        self, directory: KeyDirectory, clock: Clock, pepper: bytes, domain_key: bytes
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._pepper = pepper
        self._domain_key = domain_key
        self._domains: dict[str, str] = {}
        self._second_look = SecondLook(directory, clock)

    async def principal(self, authorization: str) -> Principal:
        """The caller, from memory if it's known there.

        Raises Unauthorized, or StoreDown when keys can't be checked.
        """
        scheme, _, secret = authorization.partition(" ")
        if not authorization:
            raise Unauthorized(f"no API key was sent; {HELP}", code="missing_api_key")
        if scheme.lower() != "bearer" or not keys.well_formed(secret.strip()):
            raise Unauthorized(f"the API key is not valid; {HELP}")
        if self._directory.is_blind(self._clock.now_us()):
            raise StoreDown(UNCHECKED)
        digest = keys.digest(self._pepper, secret.strip())
        try:
            found = self._directory.principal(digest) or await self._second_look.principal(digest)
        except StoreUnavailable:
            raise StoreDown(UNCHECKED) from None
        if found is None:
            raise Unauthorized(f"the API key is not valid; {HELP}")
        return found

    def domain(self, principal: Principal) -> str:
        """The tenant's name towards engines: a pseudonym, the same on all replicas."""
        domain = self._domains.get(principal.tenant_id)
        if domain is None:
            mac = hmac.new(self._domain_key, principal.tenant_id.encode(), hashlib.sha256).digest()
            domain = self._domains[principal.tenant_id] = b32encode(mac[:15]).decode().lower()
        return domain
