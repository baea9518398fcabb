"""TLS of the admin listener: one context, into which new certificates are loaded as they come."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
import time
from pathlib import Path

import structlog

from gateway.renewal import LOOK_EVERY_S, Renewal
from runtime import certificates
from runtime.certificates import Identity
from runtime.settings import Settings

log = structlog.get_logger()

VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class AdminTls:
    """Begins with the files that `admin.tls` names. Raises BadCertificate."""

    def __init__(self, settings: Settings) -> None:
        tls, folder = settings.file.admin.tls, settings.folder
        self._renewal = Renewal(lambda: tls, folder)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = VERSIONS[tls.min_version]
        self._use(certificates.load(tls, folder))

    async def keep(self) -> None:
        """Take up changed files until cancelled. An authority once believed stays so."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            offer = await asyncio.to_thread(self._renewal.look, time.monotonic())
            if offer is None:
                continue
            try:
                self._use(offer.identity)
            except ssl.SSLError as fault:
                self._renewal.refused(time.monotonic(), str(fault))
            else:
                self._renewal.taken()
                log.info("admin_certificate_in_use")

    def _use(self, identity: Identity) -> None:
        """Handshakes from now on show this."""
        with tempfile.TemporaryDirectory() as folder:  # of mode 0700; the library reads files only
            chain, key = Path(folder) / "chain", Path(folder) / "key"
            chain.write_bytes(identity.chain)
            key.write_bytes(identity.key)
            self.context.load_cert_chain(chain, key)
        if identity.authorities:
            self.context.load_verify_locations(cadata=identity.authorities.decode("ascii"))
            self.context.verify_mode = ssl.CERT_REQUIRED
