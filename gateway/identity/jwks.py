"""An issuer's public keys, from its JWKS document (RFC 7517): by id, each with what it's good for.

What a key may verify follows from its own type: an RSA key never checks an HMAC, and a curve has
one algorithm. Symmetric and private keys, weak ones, and those for encryption are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import InvalidKeyError
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

log = structlog.get_logger()

MIN_RSA_BITS = 2048
MAX_KEYS = 64
RSA_ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}

READERS: dict[str, Callable[[Any], Any]] = {
    "RSA": RSAAlgorithm.from_jwk,
    "EC": ECAlgorithm.from_jwk,
    "OKP": OKPAlgorithm.from_jwk,
}

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey


class BadKeySet(Exception):
    """The document is no key set, or has no key that can be used."""


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """One public key, and the algorithms that it may verify."""

    id: str  # "": it has none
    algorithms: frozenset[str]
    key: PublicKey


class KeySet:
    """The keys of one document."""

    def __init__(self, keys: tuple[VerifyingKey, ...]) -> None:
        self._keys = keys

    def find(self, key_id: str | None, algorithm: str) -> VerifyingKey | None:
        """The key of this id for this algorithm. Without an id: the one there is, if it's one."""
        fitting = [
            key for key in self._keys if algorithm in key.algorithms and key_id in (None, key.id)
        ]
        return fitting[0] if len(fitting) == 1 else None  # several: nobody says which


def keys_of(document: bytes) -> KeySet:
    """The keys of a JWKS document. Raises BadKeySet."""
    try:
        found = json.loads(document)
    except (ValueError, RecursionError):
        raise BadKeySet("it is not JSON") from None
    entries = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(entries, list):
        raise BadKeySet("it has no list `keys`")
    keys = tuple(key for entry in entries[:MAX_KEYS] if (key := _key(entry)) is not None)
    if not keys:
        raise BadKeySet("it has no key that can verify a signature")
    return KeySet(keys)


def _key(entry: Any) -> VerifyingKey | None:
    if not isinstance(entry, dict) or not _is_for_verifying(entry):
        return None
    key_id = entry.get("kid", "")
    public = _public_key(entry)
    if public is None or not isinstance(key_id, str):
        log.warning("jwks_key_left_out", kid=str(key_id)[:64], kty=str(entry.get("kty"))[:16])
        return None
    algorithms = _algorithms(public)
    if "alg" in entry:
        algorithms &= {entry["alg"]} if isinstance(entry["alg"], str) else frozenset()
    return VerifyingKey(key_id, algorithms, public)


def _is_for_verifying(entry: dict[str, Any]) -> bool:
    operations = entry.get("key_ops", ["verify"])
    return (
        entry.get("use", "sig") == "sig"
        and isinstance(operations, list)
        and "verify" in operations
        and "d" not in entry  # a private key in the open is nobody's any more
    )


def _public_key(entry: dict[str, Any]) -> PublicKey | None:
    kind = entry.get("kty")
    if not isinstance(kind, str) or kind not in READERS:  # "oct" is a shared secret
        return None
    try:
        key = READERS[kind](entry)
    except (InvalidKeyError, ValueError, TypeError, KeyError, AttributeError):
        return None
    if isinstance(key, RSAPublicKey):
        return key if key.key_size >= MIN_RSA_BITS else None
    if isinstance(key, EllipticCurvePublicKey):
        return key if key.curve.name in CURVES else None
    return key if isinstance(key, Ed25519PublicKey) else None


def _algorithms(key: PublicKey) -> frozenset[str]:
    if isinstance(key, RSAPublicKey):
        return RSA_ALGORITHMS
    if isinstance(key, EllipticCurvePublicKey):
        return frozenset({CURVES[key.curve.name]})
    return frozenset({"EdDSA"})
