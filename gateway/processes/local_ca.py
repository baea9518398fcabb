"""The certificate of `dev --https`: an authority of this state folder, and a leaf for this machine.

The authority is kept, so that whoever believes it once need not do so again; the leaf is renewed.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from runtime import durable
from runtime.config.overrides import local_tls
from runtime.tls import certificates
from runtime.tls.certificates import BadCertificate

DAY = datetime.timedelta(days=1)
CA_DAYS = 3650
LEAF_DAYS = 397  # the most that browsers believe
RENEW_DAYS = 30
EARLIER = datetime.timedelta(hours=1)  # clocks differ, containers' too

Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate that is believed, and the key that signs others."""

    certificate: x509.Certificate
    key: Key


def names_here() -> tuple[str, ...]:
    """What this machine is called, by itself."""
    return tuple(dict.fromkeys(("localhost", "127.0.0.1", "::1", socket.gethostname().lower())))


def ensure(folder: Path, names: tuple[str, ...], now: datetime.datetime | None = None) -> Path:
    """Good `cert.pem` and `key.pem` in `folder`; returns the authority's `ca.pem` beside them."""
    now = now or datetime.datetime.now(datetime.UTC)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority = _read_authority(folder, now) or _make_authority(folder, now)
    if not _is_good(folder, names, authority, now):
        _make_leaf(folder, names, authority, now)
    return folder / "ca.pem"


def _read_authority(folder: Path, now: datetime.datetime) -> Authority | None:
    """The one that was made before, unless it is broken, or ends before a new leaf would."""
    try:
        certificate = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
        key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    except (OSError, ValueError, TypeError):
        return None
    if not isinstance(key, Key) or key.public_key() != certificate.public_key():
        return None
    is_long = certificate.not_valid_after_utc > now + LEAF_DAYS * DAY
    return Authority(certificate, key) if is_long else None


def _make_authority(folder: Path, now: datetime.datetime) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"Bulkhead development authority on {socket.gethostname()}")
    certificate = (
        _builder(name, name, key, now, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(folder / "ca.key", _pem(key))
    _write(folder / "ca.pem", certificate.public_bytes(Encoding.PEM))
    return Authority(certificate, key)


def _is_good(
    folder: Path, names: tuple[str, ...], authority: Authority, now: datetime.datetime
) -> bool:
    """Whether the leaf there is this authority's, for these names, and good for a while."""
    try:
        found = certificates.load(local_tls(str(folder)), folder, now + RENEW_DAYS * DAY)
        leaf = x509.load_pem_x509_certificate(found.chain)
        leaf.verify_directly_issued_by(authority.certificate)
    except (BadCertificate, InvalidSignature, ValueError, TypeError):
        return False
    return found.leaf is not None and set(names) <= set(found.leaf.names)


def _make_leaf(
    folder: Path, names: tuple[str, ...], authority: Authority, now: datetime.datetime
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate
    alternatives = x509.SubjectAlternativeName([_general(name) for name in names])
    certificate = (
        _builder(_name(names[0]), issuer.subject, key, now, LEAF_DAYS)
        .add_extension(alternatives, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()),
            critical=False,
        )
        .sign(authority.key, hashes.SHA256())
    )
    _write(folder / "key.pem", _pem(key))
    _write(folder / "cert.pem", certificate.public_bytes(Encoding.PEM))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Key, now: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now - EARLIER + days * DAY)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(key: Key) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, data: bytes) -> None:
    """Replace a file, readable by this user alone."""
    draft = path.with_name(f".{path.name}")
    draft.unlink(missing_ok=True)
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with durable.naming(path), os.fdopen(handle, "wb") as file:
        file.write(data)
    draft.replace(path)
