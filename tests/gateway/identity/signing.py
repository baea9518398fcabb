"""Issuers of the tests: keys of every kind, their JWKS, and tokens good and bad."""

from __future__ import annotations

import base64
import hmac
import json
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from runtime.config.issuers import IssuerSettings
from tests.gateway.identity.clock import NOON_S

ISSUER = "https://id.example.com/realm"
AUDIENCE = "bulkhead"
RSA_KEY = rsa.generate_private_key(65537, 2048)
OTHER_RSA = rsa.generate_private_key(65537, 2048)
WEAK_RSA = rsa.generate_private_key(65537, 1024)
P256, P384, P521 = (
    ec.generate_private_key(curve) for curve in (ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1())
)
K1 = ec.generate_private_key(ec.SECP256K1())
ED = ed25519.Ed25519PrivateKey.generate()
PUBLIC_PEM = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
KINDS: dict[str, Any] = {"RS256": RSA_KEY, "PS384": RSA_KEY, "ES256": P256, "ES384": P384}
KINDS |= {"ES512": P521, "EdDSA": ED, "RS512": RSA_KEY}


def settings(**changed: Any) -> IssuerSettings:
    plain: dict[str, Any] = {
        "issuer": ISSUER,
        "audiences": (AUDIENCE,),
        "tenant": "acme",
        "jwks_url": "https://id.example.com/keys",
    }
    return IssuerSettings(**plain | changed)


def claims(**changed: Any) -> dict[str, Any]:
    """Good ones at noon. A value of None leaves a claim out."""
    plain = {"iss": ISSUER, "aud": AUDIENCE, "sub": "u1", "iat": NOON_S, "exp": NOON_S + 600}
    return {key: value for key, value in (plain | changed).items() if value is not None}


def token(
    said: dict[str, Any] | None = None,
    key: Any = RSA_KEY,
    algorithm: str = "RS256",
    headers: dict[str, Any] | None = None,
) -> str:
    headers = {"kid": "one"} if headers is None else headers
    return jwt.encode(claims() if said is None else said, key, algorithm, headers=headers)


def jwk(key: Any, kid: Any = "one", **changed: Any) -> dict[str, Any]:
    """A public key as a JWKS document has it."""
    reader: Any = OKPAlgorithm
    if isinstance(key, rsa.RSAPrivateKey):
        reader = RSAAlgorithm
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        reader = ECAlgorithm
    found = json.loads(reader.to_jwk(key.public_key())) | {"use": "sig"}
    found.pop("key_ops", None)
    named = {} if kid is None else {"kid": kid}
    return {key: value for key, value in (found | named | changed).items() if value is not None}


def document(*entries: dict[str, Any]) -> bytes:
    return json.dumps({"keys": list(entries)}).encode()


def spelled(head: object, payload: object, signature: bytes = b"") -> str:
    """A token of these very parts."""
    texts = (json.dumps(head).encode(), json.dumps(payload).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in texts)


def signed(head: object, payload: object) -> str:
    """The same, with a good signature by RSA_KEY."""
    text = spelled(head, payload).rpartition(".")[0]
    signature = RSA_KEY.sign(text.encode(), PKCS1v15(), SHA256())
    return f"{text}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def hmac_token(secret: bytes, algorithm: str = "HS256", said: dict[str, Any] | None = None) -> str:
    """Signed with what everybody knows, as a library that believes `alg` would check it."""
    signed = spelled({"alg": algorithm, "kid": "one", "typ": "JWT"}, said or claims()).rpartition(
        "."
    )[0]
    mac = hmac.digest(secret, signed.encode(), "sha256")
    return f"{signed}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"
