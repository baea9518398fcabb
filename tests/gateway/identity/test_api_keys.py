"""Keys, projects and tenants in the store: on each database, what is made, changed and refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from gateway.identity import keys
from gateway.identity.api_keys import (
    KeyRevoked,
    KeyTerms,
    NoSuchKey,
    create_key,
    key_of,
    list_keys,
    revoke_key,
    rotate_key,
)
from gateway.identity.last_used import GAP_US, write
from gateway.identity.projects import (
    NoSuchProject,
    ProjectExists,
    archive_project,
    create_project,
    list_projects,
)
from gateway.identity.tenants import (
    InvalidName,
    InvalidTerms,
    NoSuchTenant,
    create_tenant,
    disable_tenant,
    enable_tenant,
    list_tenants,
    set_tenant,
)
from gateway.store.address import Database
from gateway.store.callers import read_callers
from gateway.store.connection import directory_version, open_for_writing, transaction
from gateway.store.sql import Connection
from tests.gateway.identity.clock import StillClock

PEPPER = b"pepper"
SECOND = 1_000_000


@pytest.fixture
def db(database: Database) -> Iterator[Connection]:
    with closing(open_for_writing(database)) as db:
        with transaction(db):
            create_tenant(db, "acme")
        yield db


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


def test_what_a_key_may_is_kept_in_one_form(db: Connection, clock: StillClock) -> None:
    create_project(db, "acme", "search")
    terms = KeyTerms(
        scopes=["usage:read", "inference", "inference"],
        models=["b", "a", "b"],
        networks=["10.0.0.0/8", "::ffff:10.0.0.0/104", "::1"],
        expires_at=clock.us + 1,
        project="search",
    )
    key, _ = create_key(db, "acme", "laptop", PEPPER, terms, clock=clock)
    assert key == key_of(db, key.id) == list_keys(db, "acme")[0]
    assert key.scopes == {"inference", "usage:read"}
    assert key.models == ("a", "b")
    assert key.networks == ("10.0.0.0/8", "::1/128")
    assert (key.expires_at, key.project) == (clock.us + 1, "search")
    plain, _ = create_key(db, "acme", "plain", PEPPER, clock=clock)
    assert (plain.models, plain.networks, plain.expires_at, plain.project) == (None,) * 4
    assert plain.scopes == {"inference", "models:read", "usage:read"}


@pytest.mark.parametrize(
    ("terms", "told"),
    [
        ({"scopes": ["all"]}, "'all' is not a scope: use admin, inference"),
        ({"scopes": []}, "A key without a scope can do nothing"),
        ({"models": [""]}, "'' is no model's name"),
        ({"models": ["x" * 129]}, "is no model's name"),
        ({"models": ["a\nb"]}, "is no model's name"),
        ({"models": [str(i) for i in range(101)]}, "100 entries at most"),
        ({"networks": ["10.0.0.1/8"]}, "write 10.0.0.0/8"),
        ({"networks": ["everywhere"]}, "is no network"),
        ({"networks": [f"10.0.0.{i}" for i in range(101)]}, "100 entries at most"),
        ({"expires_at": StillClock().us}, "must be in the future"),
        ({"expires_at": 2**62}, "before the year 10000"),
    ],
)
def test_what_a_key_can_t_be_given_is_told(
    db: Connection, clock: StillClock, terms: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidTerms, match=told):
        create_key(db, "acme", "laptop", PEPPER, KeyTerms(**terms), clock=clock)
    assert list_keys(db, "acme") == []


def test_a_rotated_key_keeps_all_but_its_secret(db: Connection, clock: StillClock) -> None:
    terms = KeyTerms(scopes=["admin"], models=["a"], networks=["::1"])
    key, old = create_key(db, "acme", "laptop", PEPPER, terms, clock=clock)
    clock.pass_s(1)
    rotated, new = rotate_key(db, key.id, PEPPER, 60 * SECOND, clock=clock)
    assert (rotated.rotated_at, rotated.grace_until) == (clock.us, clock.us + 60 * SECOND)
    assert (rotated.id, rotated.scopes, rotated.models) == (key.id, key.scopes, key.models)
    assert rotated.hint == keys.hint(new) != key.hint
    callers = read_callers(db, include_demo=False).by_digest
    ends = {keys.digest(PEPPER, old): clock.us + 60 * SECOND, keys.digest(PEPPER, new): None}
    assert {digest: one.expires_at for digest, one in callers.items()} == ends
    clock.pass_s(61)
    rotate_key(db, key.id, PEPPER, SECOND, clock=clock)
    assert len(read_callers(db, include_demo=False).by_digest) == 2  # the first is forgotten
    rotate_key(db, key.id, PEPPER, 0, clock=clock)
    assert len(read_callers(db, include_demo=False).by_digest) == 1
    assert key_of(db, key.id).grace_until is None


def test_a_revoked_key_can_t_be_rotated_and_leaves_no_secret(
    db: Connection, clock: StillClock
) -> None:
    key, _ = create_key(db, "acme", "laptop", PEPPER, clock=clock)
    rotate_key(db, key.id, PEPPER, 60 * SECOND, clock=clock)
    revoke_key(db, key.id, clock=clock)
    assert read_callers(db, include_demo=False).by_digest == {}
    with pytest.raises(KeyRevoked, match="create another one"):
        rotate_key(db, key.id, PEPPER, 0, clock=clock)
    with pytest.raises(NoSuchKey):
        rotate_key(db, "key_x", PEPPER, 0, clock=clock)


def test_every_change_is_noticed_but_for_a_use(db: Connection, clock: StillClock) -> None:
    version = directory_version(db)

    def is_noticed() -> bool:
        nonlocal version
        before, version = version, directory_version(db)
        return before != version

    create_project(db, "acme", "search")
    assert is_noticed()
    key, _ = create_key(db, "acme", "laptop", PEPPER, KeyTerms(project="search"), clock=clock)
    assert is_noticed()
    rotate_key(db, key.id, PEPPER, SECOND, clock=clock)
    assert is_noticed()
    set_tenant(db, "acme", weight=2)
    assert is_noticed()
    disable_tenant(db, "acme", clock=clock)
    assert is_noticed()
    enable_tenant(db, "acme")
    assert is_noticed()
    archive_project(db, "acme", "search", clock=clock)
    assert is_noticed()
    revoke_key(db, key.id, clock=clock)
    assert is_noticed()
    write(db, {key.id: (clock.us, "::1")})
    assert not is_noticed()


def test_a_use_is_written_once_a_minute_and_of_keys_that_there_are(
    db: Connection, clock: StillClock
) -> None:
    key, _ = create_key(db, "acme", "laptop", PEPPER, clock=clock)

    def used() -> tuple[int | None, str | None]:
        found = key_of(db, key.id)
        return found.last_used_at, found.last_used_from

    assert used() == (None, None)
    write(db, {key.id: (clock.us, "203.0.113.7"), "key_gone": (clock.us, None)})
    write(db, {key.id: (clock.us + GAP_US - 1, "::1")})
    assert used() == (clock.us, "203.0.113.7")
    write(db, {key.id: (clock.us - 5, "::1")})
    assert used() == (clock.us, "203.0.113.7")
    write(db, {key.id: (clock.us + GAP_US, None)})
    assert used() == (clock.us + GAP_US, None)


def test_projects_are_of_one_tenant(db: Connection, clock: StillClock) -> None:
    create_tenant(db, "globex")
    search = create_project(db, "acme", "search", clock=clock)
    other = create_project(db, "globex", "search", clock=clock)
    assert list_projects(db, "acme") == [search]
    assert search.id != other.id
    with pytest.raises(ProjectExists, match="choose another name"):
        create_project(db, "acme", "search")
    with pytest.raises(InvalidName, match="not a project name"):
        create_project(db, "acme", "a b")
    with pytest.raises(NoSuchProject, match="create it first"):
        create_key(db, "acme", "laptop", PEPPER, KeyTerms(project="web"))
    create_project(db, "globex", "web")
    with pytest.raises(NoSuchProject):
        create_key(db, "acme", "laptop", PEPPER, KeyTerms(project="web"))
    archived = archive_project(db, "acme", "search", clock=clock)
    assert archived.archived_at == clock.us
    clock.pass_s(1)
    assert archive_project(db, "acme", "search", clock=clock) == archived
    with pytest.raises(NoSuchProject, match="is archived"):
        create_key(db, "acme", "laptop", PEPPER, KeyTerms(project="search"))
    with pytest.raises(NoSuchTenant):
        list_projects(db, "nobody")


def test_a_tenant_is_changed_as_told(db: Connection, clock: StillClock) -> None:
    assert set_tenant(db, "acme", timezone="Asia/Kolkata").timezone == "Asia/Kolkata"
    assert set_tenant(db, "acme", weight=1000).weight == 1000
    (acme,) = list_tenants(db)
    assert (acme.timezone, acme.weight, acme.disabled_at) == ("Asia/Kolkata", 1000, None)
    for zone in ("", "Mars/Base", "../../etc/passwd", "/etc/localtime", "Europe", "a\0b"):
        with pytest.raises(InvalidTerms, match="use an IANA name"):
            set_tenant(db, "acme", timezone=zone)
    for weight in (0, -1, 1001):
        with pytest.raises(InvalidTerms, match="from 1 to 1000"):
            set_tenant(db, "acme", weight=weight)
    with pytest.raises(NoSuchTenant):
        set_tenant(db, "nobody", weight=1)


def test_a_disabled_tenant_is_nobody_until_it_is_enabled(db: Connection, clock: StillClock) -> None:
    create_key(db, "acme", "laptop", PEPPER, clock=clock)
    assert disable_tenant(db, "acme", clock=clock).disabled_at == clock.us
    clock.pass_s(1)
    assert disable_tenant(db, "acme", clock=clock).disabled_at == clock.us - SECOND
    found = read_callers(db, include_demo=True)
    assert (found.by_digest, found.by_secret, found.by_tenant) == ({}, {}, {})
    assert enable_tenant(db, "acme").disabled_at is None
    found = read_callers(db, include_demo=True)
    assert (len(found.by_digest), len(found.by_secret)) == (1, 1)
    assert list(found.by_tenant) == ["acme"]


def test_demo_tenants_are_read_only_where_they_may_call(db: Connection) -> None:
    create_tenant(db, "demo", is_demo=True)
    create_key(db, "demo", "demo", PEPPER)
    assert list(read_callers(db, include_demo=False).by_tenant) == ["acme"]
    assert read_callers(db, include_demo=False).by_digest == {}
    assert len(read_callers(db, include_demo=True).by_digest) == 1
