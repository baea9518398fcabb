"""A violation names a salt without telling it."""

from __future__ import annotations

import hashlib

import pytest

from engines.trtllm import salts

# BLAKE3's first eight bytes, little-endian, as the reference implementation says.
KNOWN = {
    "": 12007152915317330863,
    "c": 1206680609466972906,
    "abc": 3697813978277427044,
    "ab" * 32: 7408019661602394744,
    "ab" * 32 + "c": 13411409106713490261,
    "ab" * 512: 13689979200352501187,
}


@pytest.mark.parametrize(("salt", "number"), KNOWN.items(), ids=lambda value: str(value)[:20])
def test_the_number_is_that_of_tensorrt_llm(salt: str, number: int) -> None:
    assert salts.salt_id(salt) == number


def test_a_salt_longer_than_a_chunk_is_refused() -> None:
    with pytest.raises(ValueError, match="1025 bytes"):
        salts.salt_id("x" * 1025)


def test_whose_a_violation_is() -> None:
    by_digest = {"salt": salts.digest("mine"), "salt_id": None}
    by_number = {"salt": None, "salt_id": f"{salts.salt_id('mine'):016x}"}
    for violation in (by_digest, by_number, by_digest | by_number | {"salt": by_digest["salt"]}):
        assert salts.is_of(violation, "mine")
        assert not salts.is_of(violation, "other")
    for nobodys in ({"salt": None, "salt_id": None}, {}):
        assert salts.is_of(nobodys, "mine")
        assert salts.is_of(nobodys, "other")


def test_a_digest_is_half_of_a_sha256() -> None:
    assert salts.digest("mine") == hashlib.sha256(b"mine").hexdigest()[:32]
