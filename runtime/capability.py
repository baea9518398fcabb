"""The signed identity of a request: what lets a host know whose pages it may touch.

A JWT (EdDSA), signed by the gateway for one domain and one model, a minute's life, cached at both
ends so that no request pays for a signature. A host trusts nothing else about who is calling.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

CAPABILITY_LABEL = "capability"  # by which the key is derived from the root secret
ISSUER = "bulkhead-gateway"
ALGORITHM = "EdDSA"
LIFE_S = 60
RENEW_S = 20  # a cached token with less life than this is minted anew
LEEWAY_S = 5
MAX_CACHED = 4096

Now = Callable[[], float]


class CapabilityRefused(Exception):
    """The token is missing, malformed, expired, for another model, or not signed by our gateway."""


class Signer:
    """The gateway's half."""

    def __init__(self, seed: bytes, key_id: str = "1", now: Now = time.time) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self._key_id = key_id
        self._now = now
        self._cached: dict[tuple[str, str], tuple[float, str]] = {}

    def mint(self, domain: str, model: str) -> str:
        """A token for requests of `domain` to `model`."""
        now = self._now()
        cached = self._cached.get((domain, model))
        if cached and RENEW_S < cached[0] - now <= LIFE_S:  # more: the clock was set back
            return cached[1]
        if len(self._cached) >= MAX_CACHED:
            self._cached.clear()
        issued = int(now)
        claims = {"iss": ISSUER, "sub": domain, "aud": model, "iat": issued, "exp": issued + LIFE_S}
        token = jwt.encode(claims, self._key, ALGORITHM, headers={"kid": self._key_id})
        self._cached[domain, model] = (issued + LIFE_S, token)
        return token

    def public_keys(self) -> dict[str, str]:
        """Key id -> public key (base64), as hosts are handed them."""
        raw = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return {self._key_id: base64.b64encode(raw).decode()}


class Verifier:
    """A host's half: token -> domain."""

    def __init__(self, public_keys: Mapping[str, str], model: str, now: Now = time.time) -> None:
        self._keys = {
            key_id: Ed25519PublicKey.from_public_bytes(base64.b64decode(raw))
            for key_id, raw in public_keys.items()
        }
        self._model = model
        self._now = now
        self._cached: dict[str, tuple[float, str]] = {}

    def domain(self, token: str) -> str:
        """The domain that the token speaks for. Raises CapabilityRefused."""
        now = self._now()
        cached = self._cached.get(token)
        if cached and cached[0] > now:
            return cached[1]
        claims = self._decode(token, now)
        if len(self._cached) >= MAX_CACHED:
            self._cached.clear()
        domain = str(claims["sub"])
        self._cached[token] = (claims["exp"], domain)
        return domain

    def _decode(self, token: str, now: float) -> dict[str, Any]:
        try:
            key = self._keys[jwt.get_unverified_header(token).get("kid", "")]
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[ALGORITHM],
                audience=self._model,
                issuer=ISSUER,
                # times are checked below, against the clock we were given
                options={
                    "require": ["exp", "iat", "sub", "aud"],
                    "verify_exp": False,
                    "verify_iat": False,
                },
            )
        except (jwt.InvalidTokenError, KeyError) as fault:
            raise CapabilityRefused(type(fault).__name__) from None
        exp, iat = claims["exp"], claims["iat"]
        if not isinstance(exp, int) or not isinstance(iat, int):
            raise CapabilityRefused("exp and iat must be integers")
        if not iat - LEEWAY_S <= now < exp + LEEWAY_S or exp - iat > LIFE_S:
            raise CapabilityRefused("expired, or from the future")
        return claims
