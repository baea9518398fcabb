"""The text that is hashed is one and the same everywhere, and holds all that the store does."""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, strategies as st

from gateway.money.canonical import MAX_INT, canonical
from gateway.money.chain import GENESIS, LINE, RECORD, link, sealed_text
from gateway.money.checkpoints import (
    BadCheckpoint,
    Body,
    Head,
    Signed,
    key_of,
    read_document,
    sign,
)
from gateway.store.address import Database
from gateway.store.connection import open_for_reading
from gateway.store.schema import metadata

BODY = Body(at=5, seq=2, heads=[Head(tenant_id="tn_1", chain_seq=2, hash="ab")], amounts={})
KEY, OTHER = key_of(bytes(32)), key_of(bytes([1] * 32))


def test_text_is_as_rfc_8785_has_it() -> None:
    """Its own example of strings; keys in order, no space, escapes in lower case."""
    value = {"string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/", "literals": [None, True]}
    assert canonical(value) == (
        b'{"literals":[null,true],"string":"\xe2\x82\xac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )


texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.none() | st.booleans() | st.integers(-MAX_INT, MAX_INT) | texts,
    lambda inner: st.lists(inner) | st.dictionaries(st.text("abcXYZ_0"), inner),
    max_leaves=20,
)


@given(values)
def test_text_is_json_and_says_the_same_in_any_order(value: Any) -> None:
    text = canonical(value)
    assert json.loads(text) == value
    assert canonical(json.loads(text)) == text
    if isinstance(value, dict):
        assert canonical(dict(reversed(value.items()))) == text


@pytest.mark.parametrize(
    "value", [1.5, 2**53, -(2**53), {"é": 1}, {1: 2}, b"x", {"a": {1, 2}}, "\ud800", float("nan")]
)
def test_what_has_no_one_text_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"canonical|large|key"):
        canonical(value)


def test_all_columns_are_sealed(database: Database) -> None:
    """A column that is added must be, too; empty where it wasn't known."""
    record = [column.name for column in metadata.tables["usage_record"].columns]
    with closing(open_for_reading(database)) as db:
        line = [column[0] for column in db.execute("SELECT * FROM usage_line").description]
    assert sorted(RECORD) == sorted(record)
    assert sorted(["record_id", *LINE]) == sorted(line)


def test_a_link_is_of_the_one_before_and_of_what_is_known() -> None:
    record = [{"id": "ur_1", "amount_pico": "4611686018427387904"}.get(name) for name in RECORD]
    known = {"line_no": 1, "token_class": "output", "quantity": 3, "amount_pico": "12"}
    line = [known.get(name) for name in LINE]
    text = sealed_text(record, [line])
    assert text == (
        b'{"form":2,"lines":[{"amount_pico":"12","line_no":1,"quantity":3,"token_class":"output"}],'
        b'"record":{"amount_pico":"4611686018427387904","id":"ur_1"}}'
    )
    first = link(GENESIS, record, [line])
    assert first == hashlib.sha256(bytes(32) + text).digest()
    assert link(first, record, [line]) != first


cells = st.none() | st.integers(-MAX_INT, MAX_INT) | texts
records = st.lists(cells, min_size=len(RECORD), max_size=len(RECORD))
lines = st.lists(st.lists(cells, min_size=len(LINE), max_size=len(LINE)), max_size=3)


@given(records, lines)
def test_what_is_hashed_is_canonical(record: list[Any], lines: list[list[Any]]) -> None:
    def known(names: tuple[str, ...], row: list[Any]) -> dict[str, Any]:
        return {name: one for name, one in zip(names, row, strict=True) if one is not None}

    whole = {"record": known(RECORD, record), "lines": [known(LINE, line) for line in lines]}
    assert sealed_text(record, lines) == canonical(whole | {"form": 2})


def test_a_checkpoint_is_read_back_and_believed_by_its_key_alone() -> None:
    signed = sign(BODY, KEY)
    assert read_document(signed.document()) == signed
    assert signed.body(KEY.public_key()) == BODY
    with pytest.raises(BadCheckpoint, match="did not sign"):
        signed.body(OTHER.public_key())
    changed = Signed(signed.text.replace(b'"seq":2', b'"seq":3'), signed.signature)
    with pytest.raises(BadCheckpoint, match="did not sign"):
        changed.body(KEY.public_key())


@pytest.mark.parametrize("data", [b"", b"{}", b'{"checkpoint":"x","signature":"%"}', b"\xff"])
def test_what_is_no_checkpoint_is_told(data: bytes) -> None:
    with pytest.raises(BadCheckpoint):
        read_document(data)
