"""API keys as text."""

from __future__ import annotations

import hmac
import string

import pytest

from gateway.identity import keys

BASE62 = string.digits + string.ascii_letters
SECRET = "bh_live_" + "0123456789abcdefghijklmnopqrstuv" + "3y6lJp"
PADDED = "bh_live_" + "0" * 32 + "006ply"


def test_a_minted_key_is_well_formed_and_new() -> None:
    minted = {keys.mint() for _ in range(100)}
    assert len(minted) == 100
    assert all(keys.well_formed(secret) for secret in minted)
    assert {len(secret) for secret in minted} == {46}


def test_the_checksum_is_the_zero_padded_base62_crc32_of_what_stands_before_it() -> None:
    """Pinned: scanners for leaked keys compute it too."""
    assert keys.well_formed(SECRET)
    assert keys.well_formed(PADDED)


def test_every_change_of_a_single_character_is_caught() -> None:
    secret = keys.mint()
    for at, right in enumerate(secret):
        for wrong in BASE62 + "_-":
            if wrong != right:
                assert not keys.well_formed(secret[:at] + wrong + secret[at + 1 :])


@pytest.mark.parametrize(
    "text",
    ["", "bh_live_", SECRET[:-1], SECRET + "0", " " + SECRET, SECRET + "\n", "sk-abc", "bh_live_é"],
)
def test_what_is_not_a_key_of_ours_is_refused(text: str) -> None:
    assert not keys.well_formed(text)


def test_a_digest_depends_on_the_pepper_and_on_the_whole_key() -> None:
    digest = keys.digest(b"pepper", SECRET)
    assert len(digest) == 32
    assert digest == keys.digest(b"pepper", SECRET)
    assert digest != keys.digest(b"other", SECRET)
    assert digest != keys.digest(b"pepper", SECRET[:-1] + "0")


@pytest.mark.parametrize("length", [1, 32, 64, 65])
def test_a_digest_is_an_hmac(length: int) -> None:
    pepper = b"p" * length
    assert keys.digest(pepper, SECRET) == hmac.digest(pepper, SECRET.encode(), "sha256")


def test_a_hint_shows_four_characters_at_each_end() -> None:
    assert keys.hint(SECRET) == "bh_live_0123…6lJp"


def test_an_admin_key_has_a_prefix_of_its_own_and_neither_passes_for_the_other() -> None:
    secret = keys.mint(keys.ADMIN_PREFIX)
    assert len(secret) == 47
    assert keys.well_formed(secret, keys.ADMIN_PREFIX)
    assert not keys.well_formed(secret)
    assert not keys.well_formed(keys.mint(), keys.ADMIN_PREFIX)
    assert not keys.well_formed("bh_admin_" + secret.removeprefix("bh_admin_")[::-1], "bh_admin_")
    assert keys.hint(secret) == f"{secret[:13]}…{secret[-4:]}"
