"""A tenant's records as a chain: each link is SHA-256 of the one before and of a record. Pure.

Whoever changes, removes, adds or moves a record has to make all later links anew; and then they
differ from every copy of one that was kept elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.prices import TOKEN_CLASSES

GENESIS = bytes(32)  # before a tenant's first record
FORM = 2  # of what is sealed now


# All that the store holds of a closed record, and of a line, in the order of canonical JSON. What
# isn't known is left out. Who adds a column adds a form: a gateway of the version before, which
# runs on beside new ones, seals their records too, and doesn't know the column.
def _sorted(*names: str) -> tuple[str, ...]:
    return tuple(sorted(names))


RECORD = _sorted(
    *("id", "request_id", "tenant_id", "api_key_id", "project_id", "subject"),
    *("kind", "corrects", "reason", "operation", "model_id", "model_revision", "streamed"),
    *("boot_id", "config_hash", "currency"),
    *("input_price_pico", "cached_input_price_pico", "output_price_pico", "price_version_id"),
    *("list_input_price_pico", "list_cached_input_price_pico", "list_output_price_pico"),
    *("list_price_version_id", "opened_at", "charge_at", "state", "seq", "host_id", "attempts"),
    *("outcome", "billable", "bill_reason", "first_token_at", "ended_at", "settled_at"),
    *("input_tokens", "cached_input_tokens", "output_tokens", "usage_source"),
    *("status_code", "finish_reason", "amount_pico", "list_amount_pico"),
    *("claimed_input_tokens", "claimed_output_tokens"),
)
LINE = _sorted(
    *("line_no", "sku_id", "token_class", "quantity", "price_pico", "amount_pico"),
    *("list_price_pico", "list_amount_pico"),
)
# By form, the columns that weren't there when it was made.
UNKNOWN = {2: frozenset[str](), 1: frozenset({"claimed_input_tokens", "claimed_output_tokens"})}

Row = Sequence[Any]  # what `columns` reads


def columns(names: Sequence[str], table: str) -> str:
    """What to select. Amounts come as text: they may be larger than a reader of JSON reads."""
    return ", ".join(
        f"cast({table}.{name} AS TEXT)" if name.endswith("_pico") else f"{table}.{name}"
        for name in names
    )


def link(before: bytes, record: Row, lines: Sequence[Row], form: int = FORM) -> bytes:
    """The link of a closed record with its lines, in their order."""
    return hashlib.sha256(before + sealed_text(record, lines, form)).digest()


def is_link(found: bytes, before: bytes, record: Row, lines: Sequence[Row]) -> bool:
    """Whether it is the record's link, of whichever form."""
    return any(found == link(before, record, lines, form) for form in UNKNOWN)


def sealed_text(record: Row, lines: Sequence[Row], form: int = FORM) -> bytes:
    """What is hashed: all that the store holds of a record, canonical.

    Each request pays for this, so it's encoded at once: the names are in order as they stand here,
    and the store has no number that JSON can't have. A test holds it beside `canonical`.
    """
    told = _Record(*record)
    for name in UNKNOWN[form]:
        setattr(told, name, None)
    return _encode(_Sealed(form, [_Line(*line) for line in lines], told))


def lines_of(record: Row) -> list[Row]:
    """A record's lines, as the store tells them; `verify` asks the store itself."""
    if record[_BILLABLE] != 1:
        return []
    input_, cached, output = (record[at] or 0 for at in _COUNTS)
    counts = {"input": input_ - cached, "cached_input": cached, "output": output}
    lines: list[Row] = []
    for token_class, (price, list_price) in _PRICES.items():
        if quantity := counts[token_class]:
            price_pico, listed = record[price], record[list_price]
            lines.append(
                (
                    str(quantity * int(price_pico)),
                    len(lines) + 1,
                    None if listed is None else str(quantity * int(listed)),
                    listed,
                    price_pico,
                    quantity,
                    f"{record[_MODEL]}/{token_class}-tokens",
                    token_class,
                )
            )
    return lines


_BILLABLE, _MODEL = RECORD.index("billable"), RECORD.index("model_id")
_COUNTS = [RECORD.index(f"{name}_tokens") for name in TOKEN_CLASSES]
_PRICES = {
    name: (RECORD.index(f"{name}_price_pico"), RECORD.index(f"list_{name}_price_pico"))
    for name in TOKEN_CLASSES
}


def _shape(name: str, fields: Sequence[str]) -> Any:
    """A class whose objects are encoded as their fields, without those that are None."""
    return msgspec.defstruct(name, [(field, Any, None) for field in fields], omit_defaults=True)


_Record, _Line = _shape("_Record", RECORD), _shape("_Line", LINE)
_Sealed = _shape("_Sealed", ("form", "lines", "record"))
_encode = msgspec.json.Encoder().encode
