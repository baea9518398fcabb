"""Keys as text: a prefix, 32 random base62 characters, 6 characters of checksum.

A tenant's API key begins with `bh_live_`, the operator's admin key with `bh_admin_`.
The checksum (CRC-32 of all that stands before it) lets a typing error fail without a look-up and
makes scanning for leaked keys exact. It's no secret: what is stored is an HMAC of the whole key.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import string
import zlib
from functools import lru_cache

PREFIX = "bh_live_"
ADMIN_PREFIX = "bh_admin_"
PEPPER_LABEL = "key-pepper"  # of the keyring: what `digest` is keyed with
RANDOM_LEN = 32  # 190 bits
CHECKSUM_LEN = 6  # 62**6 > 2**32
_BLOCK = 64  # bytes, of SHA-256

_BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase
_PAIRS = [first + second for first in _BASE62 for second in _BASE62]
_SHAPE = re.compile(f"[0-9A-Za-z]{{{RANDOM_LEN + CHECKSUM_LEN}}}")


def mint(prefix: str = PREFIX) -> str:
    """A new key. Whoever gets a tenant's sees it once: we keep only its digest and its hint."""
    body = prefix + "".join(secrets.choice(_BASE62) for _ in range(RANDOM_LEN))
    return body + _checksum(body)


def well_formed(secret: str, prefix: str = PREFIX) -> bool:
    """Whether this can be a key of ours at all: prefix, alphabet, length and checksum."""
    if not (secret.startswith(prefix) and _SHAPE.fullmatch(secret, len(prefix))):
        return False
    body, checksum = secret[:-CHECKSUM_LEN], secret[-CHECKSUM_LEN:]
    return checksum == _checksum(body)


def digest(pepper: bytes, secret: str) -> bytes:
    """The 32 bytes under which a key is stored: HMAC-SHA256 under the installation's pepper."""
    inner, outer = (begun.copy() for begun in _begun(pepper))
    inner.update(secret.encode())
    outer.update(inner.digest())
    return outer.digest()


@lru_cache(16)
def _begun(pepper: bytes) -> tuple[hashlib._Hash, hashlib._Hash]:
    """The two hashes of an HMAC (RFC 2104), begun: what is the same for each secret.

    `hmac.digest` begins anew each time, and gives the interpreter away meanwhile.
    """
    short = pepper if len(pepper) <= _BLOCK else hashlib.sha256(pepper).digest()
    key = short.ljust(_BLOCK, b"\0")
    inner, outer = (bytes(byte ^ pad for byte in key) for pad in (0x36, 0x5C))
    return hashlib.sha256(inner), hashlib.sha256(outer)


def hint(secret: str) -> str:
    """Enough of a key for its owner to know it again: `bh_live_abcd…wxyz`."""
    shown = secret.rindex("_") + 1 + 4
    return f"{secret[:shown]}…{secret[-4:]}"


def _checksum(body: str) -> str:
    rest, low = divmod(zlib.crc32(body.encode()), len(_PAIRS))
    high, middle = divmod(rest, len(_PAIRS))
    return _PAIRS[high] + _PAIRS[middle] + _PAIRS[low]
