"""A root secret that was lost is told, and no other is made in its place."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest

from gateway.clock import SYSTEM_CLOCK
from gateway.demo import demo_key
from gateway.identity.api_keys import Key, create_key, revoke_key
from gateway.identity.keys import PEPPER_LABEL
from gateway.identity.tenants import create_tenant
from gateway.root import RootSecretLost, keyring_of, refuse_if_lost
from gateway.store.connection import DATABASE, open_for_writing
from gateway.store.migrate import migrate
from runtime import keyring
from runtime.config.place import Place


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    migrate(tmp_path / DATABASE)
    return tmp_path


def place(folder: Path, root_secret: str = "") -> Place:
    return Place(config_path="", state_dir=folder, root_secret=root_secret)


def add_key(folder: Path) -> Key:
    with closing(open_for_writing(folder / DATABASE)) as db:
        create_tenant(db, "acme")
        return create_key(db, "acme", "ci", keyring_of(place(folder)).derive(PEPPER_LABEL))[0]


def test_it_is_made_where_no_key_needs_another(folder: Path) -> None:
    keyring_of(place(folder / "new"))
    assert keyring.path(folder / "new").exists()
    add_key(folder)
    before = keyring.path(folder).read_text()
    keyring_of(place(folder))
    assert keyring.path(folder).read_text() == before


def test_a_lost_one_is_refused_and_none_is_made(folder: Path) -> None:
    add_key(folder)
    keyring.path(folder).unlink()
    with pytest.raises(RootSecretLost, match=re.escape(str(keyring.path(folder)))):
        keyring_of(place(folder))
    assert not keyring.path(folder).exists()
    refuse_if_lost(
        place(folder, "ab" * 32)
    )  # the environment's: whether it's the one can't be told


def test_once_its_keys_are_revoked_there_is_a_new_one(folder: Path) -> None:
    key = add_key(folder)
    keyring.path(folder).unlink()
    with closing(open_for_writing(folder / DATABASE)) as db:
        revoke_key(db, key.id)
    keyring_of(place(folder))
    assert keyring.path(folder).exists()


def test_the_demo_key_needs_none(folder: Path) -> None:
    with closing(open_for_writing(folder / DATABASE)) as db:
        before = demo_key(db, folder, keyring_of(place(folder)).derive(PEPPER_LABEL))
        keyring.path(folder).unlink()
        assert demo_key(db, folder, keyring_of(place(folder)).derive(PEPPER_LABEL)) != before


def test_a_store_that_is_empty_yet_has_no_keys(tmp_path: Path) -> None:
    (tmp_path / DATABASE).touch()
    refuse_if_lost(place(tmp_path))


def test_another_one_is_refused_while_keys_need_the_one_there_was(folder: Path) -> None:
    add_key(folder)
    for other in (place(folder, "ab" * 32), place(folder, "cd" * 32)):
        with pytest.raises(RootSecretLost, match="set BULKHEAD_ROOT_SECRET, or copy"):
            keyring_of(other)
    keyring_of(place(folder))


def test_another_one_is_refused_while_another_gateway_runs(folder: Path) -> None:
    keyring_of(place(folder))
    with closing(open_for_writing(folder / DATABASE)) as db:
        db.execute("INSERT INTO gateway_boot VALUES ('boot_0', 'killed', 0, 0)")
        lives = {"until": SYSTEM_CLOCK.now_us()}
        db.execute("INSERT INTO gateway_boot VALUES ('boot_1', 'elsewhere', 0, :until)", lives)
        with pytest.raises(RootSecretLost, match=r"other gateways \(1\) use it"):
            keyring_of(place(folder, "ab" * 32))
        db.execute("DELETE FROM gateway_boot WHERE boot_id = 'boot_1'")
    keyring_of(place(folder, "ab" * 32))
