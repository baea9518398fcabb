"""Whom commands believe when they call over TLS, and which certificate they show."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx

from gateway.address import Address
from gateway.cli.options import Unreachable
from runtime.config.place import Caller
from runtime.config.tls import ClientTls
from runtime.tls import certificates
from runtime.tls.certificates import BadCertificate
from runtime.tls.contexts import show

CERT, KEY = "BULKHEAD_CLIENT_CERT", "BULKHEAD_CLIENT_KEY"
SAYS = {"cert": CERT, "key": KEY}
NAMES_ONE = f"{CERT} and {KEY} name the files of yours"
MINDS = f"it doesn't take the certificate that {CERT} names"
# What a fault says in OpenSSL's words, and what to do then.
HINTS = {
    "CERTIFICATE_VERIFY_FAILED": "BULKHEAD_CA names the file of an authority to believe",
    "WRONG_VERSION_NUMBER": "if it has no certificate, its URL begins with http://",
    "CERTIFICATE_REQUIRED": f"it asks who calls for a certificate: {NAMES_ONE}",
    "ALERT_UNKNOWN_CA": MINDS,
    "ALERT_BAD_CERTIFICATE": MINDS,
    "ALERT_CERTIFICATE_EXPIRED": MINDS,
    "ALERT_CERTIFICATE_REVOKED": MINDS,
    "ALERT_CERTIFICATE_UNKNOWN": MINDS,
    "ALERT_UNSUPPORTED_CERTIFICATE": MINDS,
    "ALERT_DECRYPT_ERROR": MINDS,
}


def towards(found: Address, given: Caller) -> ssl.SSLContext | bool:
    """For an address that a process of ours has published. Raises Unreachable."""
    if found.certificate:
        return _showing(_only(found.certificate), given)
    if found.authority:
        return _showing(ssl.create_default_context(cafile=found.authority), given)
    return outside(given)


def outside(given: Caller) -> ssl.SSLContext | bool:
    """For a URL that the environment names. Raises Unreachable."""
    try:
        believed = ssl.create_default_context(cafile=given.ca) if given.ca else None
    except OSError as fault:
        raise Unreachable(f"BULKHEAD_CA: {given.ca}: {fault.strerror or fault}") from None
    return _showing(believed, given)


def hint(url: str, fault: httpx.HTTPError) -> str:
    """What to do about a call that came to nothing; empty if nobody can tell."""
    for words, told in HINTS.items():
        if words in str(fault):
            return told
    if not isinstance(fault, httpx.ProtocolError | httpx.ReadError | httpx.WriteError):
        return ""
    if url.startswith("http://"):
        return "if it has a certificate, its URL begins with https://"
    # the alert is lost when the server closes before it has read the request
    return f"if it asks who calls for a certificate, {NAMES_ONE}"


def _showing(believed: ssl.SSLContext | None, given: Caller) -> ssl.SSLContext | bool:
    if not (given.client_cert or given.client_key):
        return believed or True
    if not (given.client_cert and given.client_key):
        one, other = (CERT, KEY) if given.client_cert else (KEY, CERT)
        raise Unreachable(f"{one} is set and {other} isn't; a certificate is shown with its key")
    context = believed or httpx.create_ssl_context(trust_env=False)
    tls = ClientTls(cert=given.client_cert, key=given.client_key)
    try:
        certificates.load(tls, Path.cwd())
        show(context, tls, Path.cwd())
    except BadCertificate as bad:
        raise Unreachable("; ".join(f"{SAYS[key]}: {told}" for key, told in bad.faults)) from None
    return context


def _only(certificate: str) -> ssl.SSLContext:
    """Believes this one certificate, by whatever name: it is our own listener's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(certificate)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
