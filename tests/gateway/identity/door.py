"""An authenticator over a real store, with one tenant, its keys, and an issuer of the tests'."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway.identity.api_keys import Key, KeyTerms, create_key, revoke_key, rotate_key
from gateway.identity.auth import Authenticator, IdentityKeys
from gateway.identity.issuers import Issuers
from gateway.identity.key_source import FetchFailed
from gateway.identity.tenants import create_tenant
from gateway.store.connection import open_for_writing
from gateway.store.directory import KeyDirectory
from gateway.store.migrate import migrate
from runtime.config.issuers import IssuerSettings
from tests.gateway.identity.clock import StillClock

PEPPER = b"pepper"
OWN = IdentityKeys(pepper=PEPPER, domain=b"domain key", tokens=b"tokens")


class Published:
    """An issuer's key set, as it can be read now. None: it can't."""

    def __init__(self, document: bytes | None = None) -> None:
        self.document = document
        self.read = 0

    async def fetch(self) -> bytes:
        self.read += 1
        if self.document is None:
            raise FetchFailed("canary: nobody answers")
        return self.document

    def fetch_of(self, _: IssuerSettings, __: Path) -> Callable[[], Any]:
        return self.fetch


class Door:
    """Whoever knocks at `auth` is judged by the store at `path`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "store.db"
        migrate(self.path)
        self.clock = StillClock()
        with self.store() as db:
            create_tenant(db, "acme")
            self.key, self.secret = create_key(db, "acme", "laptop", PEPPER, clock=self.clock)
        self.directory = KeyDirectory(self.path, self.clock)
        self.published = Published()
        self.issuers = Issuers(self.clock, self.published.fetch_of)
        self.auth = Authenticator(self.directory, self.clock, OWN, self.issuers)

    @contextmanager
    def store(self) -> Iterator[sqlite3.Connection]:
        with closing(open_for_writing(self.path)) as db:
            yield db

    def add(self, **terms: Any) -> tuple[Key, str]:
        """Another key of acme's."""
        with self.store() as db:
            return create_key(db, "acme", "more", PEPPER, KeyTerms(**terms), clock=self.clock)

    def other(self, **changed: bytes) -> Authenticator:
        """Of an installation with another secret, over the same store."""
        own = replace(OWN, **changed)
        return Authenticator(self.directory, self.clock, own, self.issuers)

    async def pass_s(self, seconds: float) -> None:
        """So much later, with the directory looked at."""
        self.clock.pass_s(seconds)
        await self.directory.refresh_if_changed()

    def lose_store(self) -> None:
        """It can't be looked at any more."""
        self.path.rename(self.path.with_suffix(".gone"))

    def revoke(self, key: Key) -> None:
        with self.store() as db:
            revoke_key(db, key.id)

    def rotate(self, key: Key, grace_s: float) -> str:
        with self.store() as db:
            grace_us = int(grace_s * 1_000_000)
            return rotate_key(db, key.id, PEPPER, grace_us, clock=self.clock)[1]
