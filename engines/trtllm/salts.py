"""A tenant's cache salt, as the guard names it: never the salt itself.

TensorRT-LLM hands a salt to its executor as a number of 64 bits: the first eight bytes of the
salt's BLAKE3 hash, little-endian. Its later versions hand over the salt too. So a violation names
the salt by a digest, by that number, or by both; `is_of` knows whose it is.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from functools import lru_cache

DIGEST_DIGITS = 32
MAX_HASHED_BYTES = 1024  # BLAKE3's first chunk: whose tree has one node

_START = struct.Struct("<8I")
_BLOCK = struct.Struct("<16I")
_INITIAL = (
    0x6A09E667,
    0xBB67AE85,
    0x3C6EF372,
    0xA54FF53A,
    0x510E527F,
    0x9B05688C,
    0x1F83D9AB,
    0x5BE0CD19,
)
_ORDER = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
_CHUNK_START, _CHUNK_END, _ROOT = 1, 2, 8
_QUARTERS = (
    (0, 4, 8, 12),
    (1, 5, 9, 13),
    (2, 6, 10, 14),
    (3, 7, 11, 15),
    (0, 5, 10, 15),
    (1, 6, 11, 12),
    (2, 7, 8, 13),
    (3, 4, 9, 14),
)
_WORD = 0xFFFFFFFF


def digest(salt: str) -> str:
    """The first 32 hex digits of its SHA-256: what the journal calls `salt`."""
    return hashlib.sha256(salt.encode()).hexdigest()[:DIGEST_DIGITS]


def is_of(violation: Mapping[str, object], salt: str) -> bool:
    """Whether the violation concerns requests of that salt.

    One that names no salt at all may be anybody's: it concerns every request.
    """
    told, told_id = violation.get("salt"), violation.get("salt_id")
    if told is not None:
        return told == digest(salt)
    return told_id is None or told_id == f"{salt_id(salt):016x}"


@lru_cache(maxsize=4096)
def salt_id(salt: str) -> int:
    """The number that TensorRT-LLM makes of a salt. Raises ValueError: longer than 1 KiB."""
    return int.from_bytes(_blake3(salt.encode())[:8], "little")


def _blake3(content: bytes) -> bytes:
    """BLAKE3 of at most 1 KiB, 32 bytes of it: one chunk, block by block."""
    if len(content) > MAX_HASHED_BYTES:
        raise ValueError(f"a cache salt of {len(content)} bytes: at most {MAX_HASHED_BYTES}")
    chain: tuple[int, ...] = _INITIAL
    starts = range(0, max(len(content), 1), 64)
    for start in starts:
        block = content[start : start + 64]
        flags = _CHUNK_START if start == 0 else 0
        flags |= _CHUNK_END | _ROOT if start == starts[-1] else 0
        chain = _compressed(chain, _BLOCK.unpack(block.ljust(64, b"\0")), len(block), flags)
    return _START.pack(*chain)


def _compressed(
    chain: tuple[int, ...], words: tuple[int, ...], length: int, flags: int
) -> tuple[int, ...]:
    state = [*chain, *_INITIAL[:4], 0, 0, length, flags]
    for _ in range(7):
        for quarter, (a, b, c, d) in enumerate(_QUARTERS):
            _mix(state, (a, b, c, d), words[2 * quarter], words[2 * quarter + 1])
        words = tuple(words[place] for place in _ORDER)
    return tuple(low ^ high for low, high in zip(state[:8], state[8:], strict=True))


def _mix(state: list[int], places: tuple[int, int, int, int], first: int, second: int) -> None:
    a, b, c, d = places
    for word, right, left in ((first, 16, 12), (second, 8, 7)):
        state[a] = (state[a] + state[b] + word) & _WORD
        state[d] = _rotated(state[d] ^ state[a], right)
        state[c] = (state[c] + state[d]) & _WORD
        state[b] = _rotated(state[b] ^ state[c], left)


def _rotated(word: int, right: int) -> int:
    return (word >> right | word << (32 - right)) & _WORD
