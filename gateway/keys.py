"""API keys as text: `bh_live_`, 32 random base62 characters, 6 characters of checksum.

The checksum (CRC-32 of all that stands before it) lets a typing error fail without a look-up and
makes scanning for leaked keys exact. It's no secret: what is stored is an HMAC of the whole key.
"""

from __future__ import annotations

import hmac
import re
import secrets
import string
import zlib

PREFIX = "bh_live_"
PEPPER_LABEL = "key-pepper"  # of the keyring: what `digest` is keyed with
RANDOM_LEN = 32  # 190 bits
CHECKSUM_LEN = 6  # 62**6 > 2**32

_BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase
_SHAPE = re.compile(f"{PREFIX}[0-9A-Za-z]{{{RANDOM_LEN + CHECKSUM_LEN}}}")


def mint() -> str:
    """A new key. Whoever gets it sees it once: we keep only its digest and its hint."""
    body = PREFIX + "".join(secrets.choice(_BASE62) for _ in range(RANDOM_LEN))
    return body + _checksum(body)


def well_formed(secret: str) -> bool:
    """Whether this can be a key of ours at all: prefix, alphabet, length and checksum."""
    if not _SHAPE.fullmatch(secret):
        return False
    body, checksum = secret[:-CHECKSUM_LEN], secret[-CHECKSUM_LEN:]
    return checksum == _checksum(body)


def digest(pepper: bytes, secret: str) -> bytes:
    """The 32 bytes under which a key is stored: HMAC-SHA256 under the installation's pepper."""
    return hmac.digest(pepper, secret.encode(), "sha256")


def hint(secret: str) -> str:
    """Enough of a key for its owner to know it again: `bh_live_abcd…wxyz`."""
    return f"{secret[: len(PREFIX) + 4]}…{secret[-4:]}"


def _checksum(body: str) -> str:
    number = zlib.crc32(body.encode())
    characters = []
    for _ in range(CHECKSUM_LEN):
        number, digit = divmod(number, len(_BASE62))
        characters.append(_BASE62[digit])
    return "".join(reversed(characters))
