"""Cursors: whoever has one can go on with it, and do nothing else."""

from __future__ import annotations

import pytest

from gateway.cursors import BadCursor, Cursors

CURSORS = Cursors(b"k" * 32)
QUESTION = ["tn_1", "1d", ["model"]]
TEXT = CURSORS.seal([1, 2, 3], QUESTION)


def test_a_place_comes_back() -> None:
    assert CURSORS.open(TEXT, QUESTION, list[int]) == [1, 2, 3]
    assert Cursors(b"k" * 32).open(TEXT, QUESTION, list[int]) == [1, 2, 3]
    assert TEXT.replace("-", "").replace("_", "").isalnum()


@pytest.mark.parametrize(
    ("text", "question"),
    [
        (TEXT, ["tn_2", "1d", ["model"]]),
        (TEXT[:-1], QUESTION),
        (TEXT + "A", QUESTION),
        ("A" + TEXT[1:], QUESTION),
        (TEXT[:-2] + "AA", QUESTION),
        ("", QUESTION),
        ("é", QUESTION),
        ("not base64!", QUESTION),
    ],
)
def test_nothing_else_does(text: str, question: list[object]) -> None:
    with pytest.raises(BadCursor):
        CURSORS.open(text, question, list[int])


def test_another_key_or_another_kind_of_place_is_none() -> None:
    with pytest.raises(BadCursor):
        Cursors(b"x" * 32).open(TEXT, QUESTION, list[int])
    with pytest.raises(BadCursor):
        CURSORS.open(TEXT, QUESTION, dict[str, int])
