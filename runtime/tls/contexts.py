"""TLS contexts that follow their files: a new connection sees what lies there, a running one stays.

For our uvicorn listeners (nodes, hosts, the admin API) and for connections that we open. The public
listener is granian's, which can't change its own (see `gateway/processes/granian.py`).
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from runtime.config.tls import ClientTls, ServerTls
from runtime.tls import certificates
from runtime.tls.certificates import BadCertificate, Identity

log = structlog.get_logger()

LOOK_EVERY_S = 1.0
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class Followed:
    """The context of some files. Asked for each connection; looks at them once a second."""

    def __init__(
        self,
        tls: ServerTls | ClientTls,
        folder: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tls = tls
        self._folder = folder
        self._clock = clock
        self._context: ssl.SSLContext | None = None
        self._using = self._seen = self._refused = certificates.contents(tls, folder)
        self._look_at = 0.0

    def __call__(self) -> ssl.SSLContext:
        """The context for a connection that begins now.

        Raises BadCertificate if there has never been a good one.
        """
        if self._context is None:
            self._context = _context(self._tls, self._folder)
        elif self._clock() >= self._look_at:
            self._look_at = self._clock() + LOOK_EVERY_S
            self._look()
        return self._context

    def _look(self) -> None:
        """Take up a change that was seen twice, so that none is taken half-written."""
        before, self._seen = self._seen, certificates.contents(self._tls, self._folder)
        if self._seen != before or self._seen in (self._using, self._refused):
            return
        try:
            self._context = _context(self._tls, self._folder)
        except BadCertificate as fault:
            self._refused = self._seen
            log.error("certificate_refused", reason=str(fault), instead="the one before is used")
        else:
            self._using = self._refused = self._seen
            log.info("certificate_in_use", folder=str(self._folder), files=self._tls.cert)


def server_context(tls: ServerTls, folder: Path) -> ssl.SSLContext:
    """For a listener. Raises BadCertificate."""
    followed = Followed(tls, folder)
    context = followed()

    def choose(connection: ssl.SSLObject, _name: str | None, _old: ssl.SSLContext) -> None:
        connection.context = followed()

    context.sni_callback = choose  # called for each handshake, also without a name
    return context


def show(context: ssl.SSLContext, tls: ServerTls | ClientTls, folder: Path) -> None:
    """Have a context show a certificate, which was checked. Raises BadCertificate."""
    try:
        context.load_cert_chain(folder / tls.cert, folder / tls.key, password=_no_password)
    except (OSError, ValueError) as fault:  # it was changed since it was checked
        raise BadCertificate([("cert", f"{folder / tls.cert} can't be used ({fault})")]) from None


def _context(tls: ServerTls | ClientTls, folder: Path) -> ssl.SSLContext:
    identity = certificates.load(tls, folder)
    context = _server(tls, identity) if isinstance(tls, ServerTls) else _client(identity)
    if tls.cert:
        show(context, tls, folder)
    return context


def _server(tls: ServerTls, identity: Identity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[tls.min_version]
    context.set_alpn_protocols(["http/1.1"])
    # A resumed session isn't verified again: it would outlive the authority that it was based on.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    if identity.authorities:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=identity.authorities.decode())
    return context


def _client(identity: Identity) -> ssl.SSLContext:
    authorities = identity.authorities.decode()
    return ssl.create_default_context(cadata=authorities or None)


def _no_password() -> bytes:
    """Instead of asking the terminal."""
    return b""
