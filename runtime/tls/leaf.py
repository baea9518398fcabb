"""One certificate: what there is to tell of it, and what makes others refuse it."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

SERVER = ExtendedKeyUsageOID.SERVER_AUTH
CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH
USAGES = {SERVER: "a server's", CLIENT: "a client's"}
MIN_RSA_BITS = 2048
MAX_RSA_BITS = 8192
CURVES = (ec.SECP256R1, ec.SECP384R1)  # the ones that granian's TLS signs with
BROKEN_HASHES = (hashes.MD5, hashes.SHA1)


@dataclass(frozen=True, slots=True)
class Certificate:
    """What there is to tell of one. Times are aware, in UTC."""

    names: tuple[str, ...]  # DNS names and addresses that it is for
    subject: str
    issuer: str
    serial: str  # hexadecimal, as openssl prints it
    fingerprint: str  # SHA-256, hexadecimal
    key: str  # such as "RSA 2048"
    not_before: datetime.datetime
    not_after: datetime.datetime


def describe(certificate: x509.Certificate) -> Certificate:
    """What there is to tell of a certificate."""
    return Certificate(
        names=_names(certificate),
        subject=certificate.subject.rfc4514_string(),
        issuer=certificate.issuer.rfc4514_string(),
        serial=f"{certificate.serial_number:X}",
        fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
        key=_key_name(certificate),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
    )


def faults(
    chain: list[x509.Certificate], usage: x509.ObjectIdentifier, now: datetime.datetime
) -> Iterator[str]:
    """Why the first of these can't be used, or would be refused. Each continues "the file …"."""
    leaf = chain[0]
    yield from _key_faults(leaf)
    yield from _time_faults(leaf, now)
    yield from _use_faults(leaf, usage)
    yield from _order_faults(chain)


def _key_name(certificate: x509.Certificate) -> str:
    key = certificate.public_key()
    if isinstance(key, rsa.RSAPublicKey):
        return f"RSA {key.key_size}"
    if isinstance(key, ec.EllipticCurvePublicKey):
        return f"EC {key.curve.name}"
    return type(key).__name__.removesuffix("PublicKey").lstrip("_")


def _key_faults(leaf: x509.Certificate) -> Iterator[str]:
    """Keys and signatures that the server can't use, or that no client should believe."""
    key = leaf.public_key()
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < MIN_RSA_BITS:
            yield f"has an RSA key of {key.key_size} bits, which is weak; {MIN_RSA_BITS} at least"
        elif key.key_size > MAX_RSA_BITS:
            yield f"has an RSA key of {key.key_size} bits; {MAX_RSA_BITS} at most"
    elif isinstance(key, ec.EllipticCurvePublicKey):
        if not isinstance(key.curve, CURVES):
            yield f"has a key on the curve {key.curve.name}; P-256 or P-384 can be used"
    elif not isinstance(key, ed25519.Ed25519PublicKey):
        yield f"has a key of the kind {_key_name(leaf)}; RSA, EC or Ed25519 can be used"
    if isinstance(leaf.signature_hash_algorithm, BROKEN_HASHES):
        yield f"is signed with {leaf.signature_hash_algorithm.name.upper()}, which is broken"


def _time_faults(leaf: x509.Certificate, now: datetime.datetime) -> Iterator[str]:
    if now > leaf.not_valid_after_utc:
        yield f"expired on {leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    if now < leaf.not_valid_before_utc:
        yield f"is not valid before {leaf.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"


def _use_faults(leaf: x509.Certificate, usage: x509.ObjectIdentifier) -> Iterator[str]:
    """What is in it that makes the other side refuse it."""
    if usage == SERVER and not _names(leaf):
        yield "names no host (subjectAltName), so every client refuses it"
    try:
        usages = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (x509.ExtensionNotFound, ValueError):
        return
    if usage not in usages and ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE not in usages:
        yield f"is not made to be {USAGES[usage]} (extendedKeyUsage)"


def _order_faults(chain: list[x509.Certificate]) -> Iterator[str]:
    for below, above in itertools.pairwise(chain):
        if below.issuer != above.subject:
            yield "is out of order: the leaf first, then each certificate's issuer"
            return


def _names(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    addresses = found.get_values_for_type(x509.IPAddress)
    return (*found.get_values_for_type(x509.DNSName), *(str(one) for one in addresses))
