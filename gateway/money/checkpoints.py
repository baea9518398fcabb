"""Checkpoints: where all chains stood at a moment, signed, small enough to be kept elsewhere.

A chain alone shows that it fits together. With a copy of a checkpoint that the store's owner can't
reach, it shows that what it covers is still what it was.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from gateway.money.canonical import canonical
from gateway.money.errors import MoneyError

LABEL = "ledger-checkpoint"  # of the key, under the root secret


class BadCheckpoint(MoneyError):
    """A checkpoint that can't be read, or that our key didn't sign."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one tenant's chain."""

    tenant_id: str
    chain_seq: int
    hash: str  # hexadecimal


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """What is signed. All records up to `seq` are sealed; sums are in pico-units by currency."""

    form: int = 1
    at: int  # microseconds UTC
    seq: int
    heads: list[Head]
    amounts: dict[str, str]
    before: str = ""  # SHA-256 of the checkpoint before, hexadecimal; "" for the first

    def text(self) -> bytes:
        """The canonical text."""
        return canonical(msgspec.to_builtins(self))


@dataclass(frozen=True, slots=True)
class Signed:
    """A checkpoint as it is kept: the very text, and its signature."""

    text: bytes
    signature: bytes

    def digest(self) -> str:
        """What the next one names it by."""
        return hashlib.sha256(self.text).hexdigest()

    def body(self, key: Ed25519PublicKey) -> Body:
        """What it says. Raises BadCheckpoint if another key signed it, or none."""
        try:
            key.verify(self.signature, self.text)
            return msgspec.json.decode(self.text, type=Body)
        except InvalidSignature:
            raise BadCheckpoint("this installation's key did not sign it as it stands") from None
        except msgspec.MsgspecError as fault:
            raise BadCheckpoint(f"it can't be read: {fault}") from None

    def document(self) -> bytes:
        """The file to keep elsewhere."""
        return msgspec.json.encode(
            _Document(
                checkpoint=self.text.decode(), signature=base64.b64encode(self.signature).decode()
            )
        )


class _Document(msgspec.Struct, frozen=True):
    checkpoint: str
    signature: str


def read_document(data: bytes) -> Signed:
    """A kept file. Raises BadCheckpoint."""
    try:
        found = msgspec.json.decode(data, type=_Document)
        return Signed(found.checkpoint.encode(), base64.b64decode(found.signature, validate=True))
    except (msgspec.MsgspecError, binascii.Error, UnicodeError) as fault:
        raise BadCheckpoint(f"it is no checkpoint: {fault}") from None


def sign(body: Body, key: Ed25519PrivateKey) -> Signed:
    """A checkpoint of these heads."""
    text = body.text()
    return Signed(text, key.sign(text))


def key_of(seed: bytes) -> Ed25519PrivateKey:
    """The key of 32 bytes that the root secret gives for LABEL."""
    return Ed25519PrivateKey.from_private_bytes(seed)
