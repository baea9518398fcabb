"""Who is calling: a key in the directory, or one and the same refusal."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from gateway.errors import StoreDown, Unauthorized
from gateway.identity import keys
from gateway.identity.auth import Authenticator
from gateway.identity.tenants import Key, create_key, create_tenant, revoke_key
from gateway.store.connection import open_for_writing
from gateway.store.directory import BLIND_AFTER_US, KeyDirectory, Principal
from gateway.store.migrate import migrate

PEPPER, DOMAIN_KEY = b"pepper", b"domain key"


class FakeClock:
    def __init__(self) -> None:
        self.us = 1_000_000

    def now_us(self) -> int:
        return self.us


class Door:
    """An authenticator over a real store with one tenant and one key."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "store.db"
        migrate(self.path)
        with closing(open_for_writing(self.path)) as db:
            create_tenant(db, "acme")
            self.key, self.secret = create_key(db, "acme", "laptop", PEPPER)
        self.clock = FakeClock()
        self.directory = KeyDirectory(self.path, self.clock)
        self.auth = Authenticator(self.directory, self.clock, PEPPER, DOMAIN_KEY)

    def revoke(self, key: Key) -> None:
        with closing(open_for_writing(self.path)) as db:
            revoke_key(db, key.id)


@pytest.fixture
async def door(tmp_path: Path) -> Door:
    door = Door(tmp_path)
    await door.directory.refresh_if_changed()
    return door


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_a_live_key_is_its_principal(door: Door, scheme: str) -> None:
    found = await door.auth.principal(f"{scheme} {door.secret}")
    assert found == Principal(door.key.tenant_id, "acme", door.key.id)
    assert await door.auth.principal(f"{scheme}  {door.secret} ") == found


def bad_headers(secret: str) -> dict[str, str]:
    flipped = secret[:-1] + ("a" if secret[-1] != "a" else "b")
    return {
        "no secret": "Bearer",
        "an empty one": "Bearer ",
        "no scheme": secret,
        "another scheme": f"Basic {secret}",
        "another case": f"Bearer {secret.swapcase()}",
        "a changed character": f"Bearer {flipped}",
        "a character less": f"Bearer {secret[:-1]}",
        "a character more": f"Bearer {secret}a",
        "two keys": f"Bearer {secret} {secret}",
        "a comma": f"Bearer {secret},",
        "quotes": f'Bearer "{secret}"',
        "SQL": "Bearer ' OR 1=1--",
        "a NUL": f"Bearer {secret}\0",
        "latin-1": "Bearer bh_live_é",
        "other digits": f"Bearer {secret[:8]}" + "\uff11" * 38,
        "well-formed, of nobody": f"Bearer {keys.mint()}",
        "long": "Bearer " + "a" * 100_000,
        "a JWT": "Bearer eyJhbGciOiJub25lIn0.e30.",
    }


@pytest.mark.parametrize("name", bad_headers("x" * 46))
async def test_every_bad_key_gets_the_same_answer(door: Door, name: str) -> None:
    header = bad_headers(door.secret)[name]
    with pytest.raises(Unauthorized) as told:
        await door.auth.principal(header)
    with pytest.raises(Unauthorized) as usual:
        await door.auth.principal("Bearer x")
    assert told.value.body() == usual.value.body()
    assert told.value.code == "invalid_api_key"
    assert told.value.row.status == 401


async def test_no_key_at_all_is_told_as_such(door: Door) -> None:
    with pytest.raises(Unauthorized, match="no API key was sent") as told:
        await door.auth.principal("")
    assert told.value.code == "missing_api_key"


async def test_a_key_under_another_pepper_is_nobody_s(door: Door) -> None:
    other = Authenticator(door.directory, door.clock, b"other", DOMAIN_KEY)
    with pytest.raises(Unauthorized):
        await other.principal(f"Bearer {door.secret}")


async def test_a_revoked_key_is_refused_once_the_directory_has_looked(door: Door) -> None:
    door.revoke(door.key)
    await door.directory.refresh_if_changed()
    with pytest.raises(Unauthorized):
        await door.auth.principal(f"Bearer {door.secret}")


async def test_a_blind_gateway_says_503_to_every_well_formed_key(door: Door) -> None:
    """A key may have been revoked meanwhile; and a wrong key must not learn that it is wrong."""
    door.clock.us += BLIND_AFTER_US
    await door.auth.principal(f"Bearer {door.secret}")
    door.clock.us += 1
    for secret in (door.secret, keys.mint()):
        with pytest.raises(StoreDown) as told:
            await door.auth.principal(f"Bearer {secret}")
        assert told.value.row.status == 503
    with pytest.raises(Unauthorized):
        await door.auth.principal("Bearer nonsense")


async def test_before_the_first_look_nobody_is_believed(tmp_path: Path) -> None:
    door = Door(tmp_path)
    with pytest.raises(StoreDown):
        await door.auth.principal(f"Bearer {door.secret}")


async def test_a_domain_is_a_stable_pseudonym_of_the_tenant(door: Door) -> None:
    """The same for each key and on each replica; another for each tenant; it names nobody."""
    acme = Principal("tn_acme", "acme", "key_1")
    again = Principal("tn_acme", "renamed", "key_2")
    other = Principal("tn_other", "acme", "key_3")
    replica = Authenticator(door.directory, door.clock, b"x", DOMAIN_KEY)
    domain = door.auth.domain(acme)
    assert domain == door.auth.domain(again) == door.auth.domain(acme) == replica.domain(acme)
    assert domain != door.auth.domain(other)
    assert domain != Authenticator(door.directory, door.clock, PEPPER, b"y").domain(acme)
    assert "acme" not in domain
    assert "tn_" not in domain
    assert len(domain) == 24
    assert domain.isalnum()
    assert domain == domain.lower()
