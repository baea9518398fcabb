"""Who is calling: an API key, a token that a key has minted, or one of an issuer's becomes a
principal, or a 401.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b32encode
from contextlib import suppress
from dataclasses import dataclass, replace

from gateway.clock import Clock
from gateway.errors import StoreDown, Unauthorized
from gateway.identity import claims, keys, tokens
from gateway.identity.claims import TokenRefused
from gateway.identity.issuers import Issuers
from gateway.identity.key_source import KeysUnavailable
from gateway.store.directory import KeyDirectory
from gateway.store.errors import StoreUnavailable
from gateway.store.principal import Principal
from gateway.store.second_look import SecondLook
from runtime.keyring import Keyring

HELP = "send a valid API key as `Authorization: Bearer bh_live_…`"
UNCHECKED = "keys can't be checked just now; try again"
US = 1_000_000


@dataclass(frozen=True, slots=True, repr=False)
class IdentityKeys:
    """What the root secret gives for knowing callers, and for naming tenants towards engines."""

    pepper: bytes  # of API keys' digests
    domain: bytes
    tokens: bytes


def identity_keys(root: Keyring) -> IdentityKeys:
    """Those of an installation: the same on each of its replicas."""
    return IdentityKeys(
        pepper=root.derive(keys.PEPPER_LABEL),
        domain=root.derive("domain"),
        tokens=root.derive(tokens.LABEL),
    )


class Authenticator:
    """Checks callers against the directory in memory; one text for every bad key or token."""

    def __init__(
        self, directory: KeyDirectory, clock: Clock, own: IdentityKeys, issuers: Issuers
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._own = own
        self._issuers = issuers
        self._domains: dict[str, str] = {}
        self._second_look = SecondLook(directory, clock)

    async def principal(self, authorization: str) -> Principal:
        """The caller, from memory if it's known there.

        Raises Unauthorized, with the reason for the operator, or StoreDown when it can't be
        checked.
        """
        scheme, _, secret = authorization.partition(" ")
        if not authorization:
            raise Unauthorized(f"no API key was sent; {HELP}", code="missing_api_key")
        if scheme.lower() != "bearer":
            raise refused("not a bearer")
        found = await self._bearer(secret.strip())
        if found.expires_at is not None and self._clock.now_us() >= found.expires_at:
            raise refused("expired")
        return found

    def is_still(self, principal: Principal) -> bool:
        """Whether a principal is who it was a moment ago; False says nothing."""
        now_us, base = self._clock.now_us(), principal.base or principal
        return (
            self._directory.now(base) is base
            and not self._directory.is_blind(now_us)
            and (principal.expires_at is None or now_us < principal.expires_at)
        )

    def mint(self, grant: tokens.Grant) -> str:
        """A token for whom a caller lets call in its place."""
        return tokens.mint(self._own.tokens, grant)

    def domain(self, principal: Principal) -> str:
        """The tenant's name towards engines: a pseudonym, the same on all replicas."""
        domain = self._domains.get(principal.tenant_id)
        if domain is None:
            tenant = principal.tenant_id.encode()
            mac = hmac.new(self._own.domain, tenant, hashlib.sha256).digest()
            domain = self._domains[principal.tenant_id] = b32encode(mac[:15]).decode().lower()
        return domain

    async def _bearer(self, secret: str) -> Principal:
        if keys.well_formed(secret):
            return await self._by_key(secret)
        if secret.startswith(tokens.PREFIX):
            return await self._by_token(secret)
        if claims.looks_like_one(secret):
            return await self._by_issuer(secret)
        raise refused("not a key")

    async def _by_key(self, secret: str) -> Principal:
        await self._must_see()
        digest = keys.digest(self._own.pepper, secret)
        try:
            found = self._directory.principal(digest) or await self._second_look.principal(digest)
        except StoreUnavailable:
            raise StoreDown(UNCHECKED) from None
        if found is None:
            raise refused("no live key")
        return found

    async def _by_token(self, token: str) -> Principal:
        grant = tokens.read(self._own.tokens, token)
        if grant is None:
            raise refused("not a token of ours")
        await self._must_see()
        found = self._directory.by_secret(grant.secret)
        if found is None:
            raise refused("the token's key is not live")
        return tokens.narrowed(found, grant)

    async def _by_issuer(self, token: str) -> Principal:
        try:
            verified = await self._issuers.verified(token)
        except TokenRefused as fault:
            raise refused(str(fault)) from None
        except KeysUnavailable:
            raise StoreDown(UNCHECKED) from None
        await self._must_see()
        tenant = self._directory.tenant(verified.tenant)
        if tenant is None:
            raise refused("the issuer's token is for no live tenant")
        return replace(
            tenant,
            subject=verified.subject,
            scopes=verified.scopes,
            expires_at=verified.expires_at * US,
            base=tenant,
        )

    async def _must_see(self) -> None:
        """Look at once if what is in memory is too old: this process may have been paused."""
        if not self._is_blind():
            return
        with suppress(StoreUnavailable):
            await self._second_look.look()
        if self._is_blind():
            raise StoreDown(UNCHECKED)

    def _is_blind(self) -> bool:
        return self._directory.is_blind(self._clock.now_us())


def refused(reason: str) -> Unauthorized:
    """The one answer to whoever isn't known; `reason` is for the log."""
    fault = Unauthorized(f"the API key is not valid; {HELP}")
    fault.reason = reason
    return fault
