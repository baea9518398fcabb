"""The admin key: made once, private, and no tenant's."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.admin.key import BadAdminKey, NoAdminKey, ensure, matches, read
from gateway.identity import keys


def test_it_is_made_once_and_is_private(tmp_path: Path) -> None:
    key = ensure(tmp_path)
    assert keys.well_formed(key, keys.ADMIN_PREFIX)
    assert ensure(tmp_path) == read(tmp_path) == key
    assert (tmp_path / "admin-key").stat().st_mode & 0o777 == 0o600


def test_the_environments_key_wins_and_no_file_is_made(tmp_path: Path) -> None:
    given = "x" * 32
    assert ensure(tmp_path, given) == read(tmp_path, given) == given
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", ["short", "x" * 31, "x" * 513, "x" * 40 + " ", "é" * 40])
def test_what_can_be_guessed_or_not_be_sent_is_refused(tmp_path: Path, given: str) -> None:
    with pytest.raises(BadAdminKey, match="BULKHEAD_ADMIN_KEY") as fault:
        ensure(tmp_path, given)
    assert given not in str(fault.value)


def test_a_tenants_key_is_no_admin_key(tmp_path: Path) -> None:
    with pytest.raises(BadAdminKey, match="no tenant's key"):
        ensure(tmp_path, keys.mint())
    (tmp_path / "admin-key").write_text(keys.mint())
    (tmp_path / "admin-key").chmod(0o600)
    with pytest.raises(BadAdminKey, match="holds no admin key"):
        read(tmp_path)


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    ensure(tmp_path)
    (tmp_path / "admin-key").chmod(0o640)
    with pytest.raises(BadAdminKey, match="chmod 600"):
        ensure(tmp_path)


def test_before_the_first_start_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(NoAdminKey, match="--state"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("authorization", "opens"),
    [
        ("Bearer {}", True),
        ("bearer {}", True),
        ("Bearer  {} ", True),
        ("Bearer {}x", False),
        ("Basic {}", False),
        ("{}", False),
        ("", False),
        ("Bearer ", False),
        ("Bearer é", False),
    ],
)
def test_what_opens(authorization: str, opens: bool) -> None:
    key = keys.mint(keys.ADMIN_PREFIX)
    assert matches(authorization.format(key), key) is opens
