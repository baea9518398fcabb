"""Tenants and keys, as the command line makes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from gateway.identity import keys
from gateway.identity.api_keys import Key, NoSuchKey, create_key, list_keys, revoke_key
from gateway.identity.tenants import (
    InvalidName,
    NoSuchTenant,
    Tenant,
    TenantExists,
    create_tenant,
    list_tenants,
)
from gateway.store.address import Database
from gateway.store.connection import open_for_writing
from gateway.store.sql import Connection

PEPPER = b"pepper"


class FakeClock:
    us = 0

    def now_us(self) -> int:
        self.us += 1
        return self.us


@pytest.fixture
def db(database: Database) -> Iterator[Connection]:
    with closing(open_for_writing(database)) as db:
        yield db


def test_tenants_are_listed_by_name(db: Connection) -> None:
    globex = create_tenant(db, "globex")
    demo = create_tenant(db, "demo", is_demo=True)
    assert list_tenants(db) == [demo, globex]
    assert demo == Tenant(demo.id, "demo", is_demo=True)


def test_a_tenant_name_is_taken_once(db: Connection) -> None:
    create_tenant(db, "acme")
    with pytest.raises(TenantExists, match="choose another name"):
        create_tenant(db, "acme")
    create_tenant(db, "acme2")


@pytest.mark.parametrize("name", ["", "-acme", "a b", "a/b", "é", "a" * 65, "acme\n", "=1+1"])
def test_a_bad_tenant_name_is_refused_with_what_is_allowed(db: Connection, name: str) -> None:
    with pytest.raises(InvalidName, match="use 1 to 64 letters"):
        create_tenant(db, name)
    assert list_tenants(db) == []


def test_a_secret_is_shown_once_and_stored_as_its_digest(db: Connection) -> None:
    tenant = create_tenant(db, "acme")
    key, secret = create_key(db, "acme", "laptop", PEPPER)
    assert keys.well_formed(secret)
    assert key == Key(key.id, tenant.id, keys.hint(secret), "laptop", key.created_at, None)
    (stored,) = db.execute("SELECT * FROM api_key").fetchall()
    assert keys.digest(PEPPER, secret) in stored
    assert secret not in stored
    assert list_keys(db, "acme") == [key]


def test_a_key_needs_a_tenant_and_a_name(db: Connection) -> None:
    with pytest.raises(NoSuchTenant, match=r"'acme'.*create it first"):
        create_key(db, "acme", "laptop", PEPPER)
    with pytest.raises(NoSuchTenant):
        list_keys(db, "acme")
    create_tenant(db, "acme")
    for name in ("", "a\tb", "a" * 65):
        with pytest.raises(InvalidName, match="printable"):
            create_key(db, "acme", name, PEPPER)


def test_revoking_twice_keeps_the_first_time(db: Connection) -> None:
    create_tenant(db, "acme")
    key, _ = create_key(db, "acme", "laptop", PEPPER)
    clock = FakeClock()
    assert revoke_key(db, key.id, clock=clock).revoked_at == 1
    assert revoke_key(db, key.id, clock=clock).revoked_at == 1
    assert [key.revoked_at for key in list_keys(db, "acme")] == [1]


def test_an_unknown_key_cannot_be_revoked(db: Connection) -> None:
    with pytest.raises(NoSuchKey, match="list the tenant's keys"):
        revoke_key(db, "key_unknown")
