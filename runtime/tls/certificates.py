"""Certificate files: read, checked and described. Every fault is a sentence with the file's path.

A key in any usual PEM form is taken, and handed on as PKCS#8: that's the one form that all
libraries behind us read.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from engines import regular
from runtime.config.tls import ClientTls, ServerTls
from runtime.tls.leaf import CLIENT, SERVER, Certificate, describe, faults as leaf_faults

WARN_S = 14 * 24 * 3600  # an expiry that is nearer than this is a warning
OTHERS_MAY_READ = 0o004
PRIVATE_KEY = re.compile(rb"-----BEGIN ([A-Z0-9 ]*PRIVATE KEY)-----.*?-----END \1-----", re.DOTALL)

T = TypeVar("T", ServerTls, ClientTls)
Fault = tuple[str, str]  # the key of the config's `tls` table, and a sentence


class BadCertificate(Exception):
    """Certificate files that can't be used. The message has every fault."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("; ".join(message for _, message in faults))
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Identity:
    """A chain and its key, which belong together, and the authorities that are believed."""

    leaf: Certificate | None = None  # None: nothing to show, as a client may
    chain: bytes = b""  # PEM, the leaf first
    key: bytes = b""  # PEM, PKCS#8
    authorities: bytes = b""  # PEM; empty: nobody is asked for a certificate, or the system's


@dataclass(slots=True)
class Found:
    """What the files hold, and what is wrong with them."""

    errors: list[Fault] = field(default_factory=list)
    warnings: list[Fault] = field(default_factory=list)
    identity: Identity = Identity()


def faults(
    tls: ServerTls | ClientTls, folder: Path, now: datetime.datetime | None = None
) -> Iterator[Fault]:
    """What forbids the use of these files. Relative paths start at `folder`."""
    yield from read(tls, folder, now).errors


def warnings(
    tls: ServerTls | ClientTls, folder: Path, now: datetime.datetime | None = None
) -> Iterator[Fault]:
    """What an operator should see to before long."""
    yield from read(tls, folder, now).warnings


def load(
    tls: ServerTls | ClientTls, folder: Path, now: datetime.datetime | None = None
) -> Identity:
    """The identity in these files. Raises BadCertificate with all that is wrong."""
    found = read(tls, folder, now)
    if found.errors:
        raise BadCertificate(found.errors)
    return found.identity


def read(tls: ServerTls | ClientTls, folder: Path, now: datetime.datetime | None = None) -> Found:
    """Look at every file, whatever is wrong with the others."""
    return _Reading(folder, now or datetime.datetime.now(datetime.UTC)).of(tls)


def absolute(tls: T, folder: Path) -> T:
    """The same with paths that start nowhere."""
    names = [name for name in ("cert", "key", "ca", "client_ca") if getattr(tls, name, "")]
    return msgspec.structs.replace(tls, **{n: str(folder / getattr(tls, n)) for n in names})


def contents(tls: ServerTls | ClientTls, folder: Path) -> tuple[bytes | None, ...]:
    """The bytes of the files, None for one that can't be read: compared to notice a change."""
    ca = tls.client_ca if isinstance(tls, ServerTls) else tls.ca
    return tuple(_bytes_or_none(folder / name) for name in (tls.cert, tls.key, ca) if name)


class _Reading:
    """One look at the files of one `tls` table."""

    def __init__(self, folder: Path, now: datetime.datetime) -> None:
        self._folder = folder
        self._now = now
        self._found = Found()

    def of(self, tls: ServerTls | ClientTls) -> Found:
        usage = SERVER if isinstance(tls, ServerTls) else CLIENT
        chain = self._chain(tls.cert, usage) if tls.cert else []
        key = self._key(tls.key) if tls.key else b""
        if chain and key and not _belong_together(chain[0], key):
            self._error("key", tls.key, f"is not the key of the certificate in {tls.cert}")
        authorities = (
            self._authorities("client_ca", tls.client_ca)
            if isinstance(tls, ServerTls)
            else self._authorities("ca", tls.ca)
        )
        if not self._found.errors:
            leaf = describe(chain[0]) if chain else None
            self._found.identity = Identity(leaf, _pem(chain), key, authorities)
        return self._found

    def _chain(self, name: str, usage: x509.ObjectIdentifier) -> list[x509.Certificate]:
        chain = self._certificates("cert", name)
        if not chain:
            return []
        leaf = chain[0]
        try:
            leaf.public_key()
        except (ValueError, UnsupportedAlgorithm):
            self._error("cert", name, "has a key of a kind that can't be used; RSA, EC or Ed25519")
            return []
        for fault in leaf_faults(chain, usage, self._now):
            self._error("cert", name, fault)
        left = (leaf.not_valid_after_utc - self._now).total_seconds()
        if 0 < left < WARN_S:
            when = f"{leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC, in {left / 86400:.0f} days"
            self._warning("cert", name, f"expires on {when}; renew it")
        return chain

    def _key(self, name: str) -> bytes:
        data = self._bytes("key", name)
        if data is None:
            return b""
        block = PRIVATE_KEY.search(data)
        if block is None:
            self._error("key", name, "holds no private key in PEM")
        elif b"ENCRYPTED" in block[0]:
            self._error("key", name, f"is encrypted; store it plain: openssl pkey -in {name}")
        else:
            self._look_who_may_read(name)
            try:
                key = load_pem_private_key(block[0], None)
            except (ValueError, TypeError, UnsupportedAlgorithm):
                self._error("key", name, "holds a private key that can't be read")
            else:
                return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return b""

    def _authorities(self, key: str, name: str) -> bytes:
        found = self._certificates(key, name) if name else []
        if found and all(self._now > one.not_valid_after_utc for one in found):
            self._error(key, name, "holds no certificate that is still valid")
        return _pem(found)

    def _certificates(self, key: str, name: str) -> list[x509.Certificate]:
        data = self._bytes(key, name)
        if data is None:
            return []
        if b"-----BEGIN CERTIFICATE-----" not in data:
            hint = "; it may be in DER" if data.startswith(b"\x30\x82") else ""
            self._error(key, name, f"holds no certificate in PEM{hint}")
            return []
        try:
            return x509.load_pem_x509_certificates(data)
        except ValueError:
            self._error(key, name, "holds a certificate that can't be read")
            return []

    def _bytes(self, key: str, name: str) -> bytes | None:
        try:
            return regular.read(self._folder / name)
        except OSError as fault:
            self._error(key, name, f"can't be read ({fault.strerror})")
            return None

    def _look_who_may_read(self, name: str) -> None:
        with suppress(OSError):
            if (self._folder / name).stat().st_mode & OTHERS_MAY_READ:
                self._warning("key", name, "can be read by every user; chmod o= it")

    def _error(self, key: str, name: str, message: str) -> None:
        self._found.errors.append((key, f"{self._folder / name} {message}"))

    def _warning(self, key: str, name: str, message: str) -> None:
        self._found.warnings.append((key, f"{self._folder / name} {message}"))


def _belong_together(leaf: x509.Certificate, key: bytes) -> bool:
    return load_pem_private_key(key, None).public_key() == leaf.public_key()


def _pem(certificates: list[x509.Certificate]) -> bytes:
    return b"".join(one.public_bytes(Encoding.PEM) for one in certificates)


def _bytes_or_none(path: Path) -> bytes | None:
    try:
        return regular.read(path)
    except OSError:
        return None
