"""A certificate authority of the tests' own: good certificates, and every kind of bad one."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey
HERE = ("localhost", "127.0.0.1", "::1")
DAY = datetime.timedelta(days=1)


def p256() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def pem_of(
    key: Key,
    form: PrivateFormat = PrivateFormat.PKCS8,
    encryption: KeySerializationEncryption | None = None,
) -> bytes:
    return key.private_bytes(Encoding.PEM, form, encryption or NoEncryption())


@dataclass
class Issued:
    """A certificate with its key, as bytes and in files."""

    certificate: x509.Certificate
    key: Key
    cert_path: Path
    key_path: Path

    @property
    def serial(self) -> int:
        return self.certificate.serial_number

    def write(self) -> None:
        self.cert_path.write_bytes(self.certificate.public_bytes(Encoding.PEM))
        self.key_path.touch(0o600)
        self.key_path.write_bytes(pem_of(self.key))


class Authority:
    """An authority whose certificate lies in `folder/ca.pem`."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        self.folder = folder
        self._key = p256()
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.UTC)
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 400 * DAY)
            .not_valid_after(now + 400 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.path = folder / "ca.pem"
        self.path.write_bytes(self.certificate.public_bytes(Encoding.PEM))

    def issue(
        self,
        stem: str = "server",
        *,
        names: tuple[str, ...] = HERE,
        key: Key | None = None,
        since: datetime.timedelta = -DAY,
        until: datetime.timedelta = 90 * DAY,
        usage: x509.ObjectIdentifier | None = ExtendedKeyUsageOID.SERVER_AUTH,
    ) -> Issued:
        """A leaf, written to `folder/<stem>.pem` and `<stem>.key`; times are from now."""
        key = key or p256()
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, stem)]))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + since)
            .not_valid_after(now + until)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False
            )
        )
        if names:
            alternatives = x509.SubjectAlternativeName([_general(name) for name in names])
            builder = builder.add_extension(alternatives, critical=False)
        if usage:
            builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        issued = Issued(
            builder.sign(self._key, hashes.SHA256()),
            key,
            self.folder / f"{stem}.pem",
            self.folder / f"{stem}.key",
        )
        issued.write()
        return issued

    def context(self, stem: str = "") -> ssl.SSLContext:
        """For a client that believes this authority, and shows the certificate `stem`."""
        context = ssl.create_default_context(cafile=str(self.path))
        if stem:
            context.load_cert_chain(self.folder / f"{stem}.pem", self.folder / f"{stem}.key")
        return context

    def client(self, stem: str = "client") -> Issued:
        """A certificate for the calling side."""
        return self.issue(stem, names=(), usage=ExtendedKeyUsageOID.CLIENT_AUTH)


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
