"""Notices new certificates, and says when they can be used. Time is an argument.

What can't be used is refused with its reason in the log, and what is in use stays. A pair is
written in two steps, so files that don't fit are given time before they are called wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import structlog

from runtime.config.tls import ServerTls
from runtime.tls import certificates
from runtime.tls.certificates import BadCertificate, Identity

log = structlog.get_logger()

LOOK_EVERY_S = 1.0
STEADY_S = 1.0  # files that haven't changed for so long are written
PATIENCE_S = 5.0  # for the other half of a pair
AGAIN_S = 300.0  # what was refused is tried again: it may not have been valid yet
REMIND_S = 24 * 3600.0


class Files(NamedTuple):
    """What the configuration names, and what lies there: compared to notice a change."""

    tls: ServerTls
    contents: tuple[bytes | None, ...]


class Offer(NamedTuple):
    """Certificates that can be used."""

    tls: ServerTls
    identity: Identity


class Renewal:
    """The files that `tls` names, watched from what is in use now."""

    def __init__(self, tls: Callable[[], ServerTls], folder: Path) -> None:
        self._tls = tls
        self._folder = folder
        self._using = self._read()
        self._seen = self._using
        self._since = 0.0
        self._offered: Files | None = None
        self._refused: Files | None = None
        self._look_at = 0.0
        self._again_at = 0.0
        self._remind_at = 0.0

    def look(self, now: float) -> Offer | None:
        """What is to be used from now on, or None. Reads the files once a second."""
        if now < self._look_at:
            return None
        self._look_at = now + LOOK_EVERY_S
        self._remind(now)
        found = self._read()
        if found != self._seen:
            self._seen, self._since = found, now
        if found in (self._using, self._offered) or now - self._since < STEADY_S:
            return None
        if found == self._refused and now < self._again_at:
            return None
        return self._checked(now)

    def taken(self) -> None:
        """What `look` said last is in use now."""
        if self._offered is not None:
            self._using, self._offered = self._offered, None

    def refused(self, now: float, reason: str) -> None:
        """What `look` said last couldn't be used after all; what was before still is."""
        if self._offered is not None:
            self._refuse(self._offered, now, reason)
            self._offered = None

    def _read(self) -> Files:
        tls = self._tls()
        return Files(tls, certificates.contents(tls, self._folder))

    def _checked(self, now: float) -> Offer | None:
        tls = self._seen.tls
        try:
            identity = certificates.load(tls, self._folder)
        except BadCertificate as fault:
            if now - self._since >= PATIENCE_S:
                self._refuse(self._seen, now, str(fault))
            return None
        self._offered, self._refused, self._remind_at = self._seen, None, now
        return Offer(tls, identity)

    def _refuse(self, found: Files, now: float, reason: str) -> None:
        log.error("certificate_refused", reason=reason, instead="the one before stays in use")
        self._refused, self._again_at = found, now + AGAIN_S

    def _remind(self, now: float) -> None:
        """Of what the operator should see to, once a day."""
        if now < self._remind_at:
            return
        self._remind_at = now + REMIND_S
        found = certificates.read(self._using.tls, self._folder)
        for _, message in found.warnings:
            log.warning("certificate_warning", message=message)
