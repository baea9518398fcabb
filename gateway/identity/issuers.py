"""The issuers whose tokens are believed: each with its keys, and the tokens that were good lately.

A signature is checked once for each token: what it said is kept, under the hash of the whole token,
until it expires or the issuer's keys change.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path

from gateway.clock import Clock
from gateway.identity.claims import (
    TokenRefused,
    UnknownKey,
    Verified,
    envelope_of,
    verify,
)
from gateway.identity.jwks import KeySet
from gateway.identity.key_fetch import fetch_of
from gateway.identity.key_source import Fetch, KeySource
from runtime.config.issuers import IssuerSettings

MAX_KEPT = 4096  # tokens of one issuer
US = 1_000_000


class Issuer:
    """One issuer. Belongs to one event loop."""

    def __init__(self, settings: IssuerSettings, fetch: Fetch, clock: Clock) -> None:
        self.settings = settings
        self._clock = clock
        self._source = KeySource(
            settings.issuer, fetch, clock, settings.refresh_s, settings.stale_s
        )
        self._good: OrderedDict[bytes, Verified] = OrderedDict()
        self._good_by: KeySet | None = None

    async def verified(self, token: str, digest: bytes) -> Verified:
        """Whom a token speaks for. Raises TokenRefused or KeysUnavailable."""
        keys = await self._source.keys()
        if keys is not self._good_by:
            self._good.clear()
            self._good_by = keys
        now_s = self._clock.now_us() / US
        found = self._good.get(digest)
        if found is not None and now_s < found.expires_at:
            return found
        envelope = envelope_of(token)
        try:
            found = verify(token, envelope, keys, self.settings, now_s)
        except UnknownKey:
            newer = await self._source.newer()
            if newer is keys:
                raise
            found = verify(token, envelope, newer, self.settings, now_s)
        else:
            self._keep(digest, found)
        return found

    def _keep(self, digest: bytes, found: Verified) -> None:
        self._good[digest] = found
        if len(self._good) > MAX_KEPT:
            self._good.popitem(last=False)


class Issuers:
    """Those that the configuration names. What is known of one outlives a deployment."""

    def __init__(self, clock: Clock, fetch_of: Callable[[IssuerSettings, Path], Fetch] = fetch_of):
        self._clock = clock
        self._fetch_of = fetch_of
        self._by_name: dict[str, Issuer] = {}
        self._by_token: OrderedDict[bytes, Issuer] = OrderedDict()  # of tokens that were good
        self._folder = Path()

    def keep(self, settings: Iterable[IssuerSettings], folder: Path) -> None:
        """Believe these, and nobody else. Relative paths start at `folder`."""
        before, self._by_name = self._by_name, {}
        self._by_token.clear()
        for each in settings:
            known = before.get(each.issuer)
            if known is None or known.settings != each or folder != self._folder:
                known = Issuer(each, self._fetch_of(each, folder), self._clock)
            self._by_name[each.issuer] = known
        self._folder = folder

    async def verified(self, token: str) -> Verified:
        """Whom a token speaks for. Raises TokenRefused or KeysUnavailable."""
        if not self._by_name:
            raise TokenRefused("no issuer is configured")
        digest = hashlib.sha256(token.encode()).digest()
        issuer = self._by_token.get(digest) or self._by_name.get(envelope_of(token).issuer)
        if issuer is None:
            raise TokenRefused("iss is no issuer of ours")
        found = await issuer.verified(token, digest)
        self._by_token[digest] = issuer
        if len(self._by_token) > MAX_KEPT:
            self._by_token.popitem(last=False)
        return found
