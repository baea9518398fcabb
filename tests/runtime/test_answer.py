"""Stop strings: nothing after them, nothing before them lost, however the text was cut."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given, strategies as st

from engines.api import EngineFailed, FinishReason, KvIntegrityAbort, Output
from engines.fake import ByteTokenizer
from runtime.host.answer import Answer, Piece, StopScanner


def reference(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """Letter by letter: the first stop string to be whole ends the text before its own begin."""
    for end in range(1, len(text) + 1):
        begins = [end - len(s) for s in stops if s and text[:end].endswith(s)]
        if begins:
            return text[: min(begins)], True
    return text, False


def scan(parts: Sequence[str], stops: Sequence[str]) -> tuple[str, bool]:
    scanner, out = StopScanner(stops), ""
    for part in parts:
        text, stopped = scanner.push(part)
        out += text
        if stopped:
            return out, True
    return out + scanner.flush(), False


def cut(text: str, at: Sequence[int]) -> list[str]:
    marks = sorted({0, len(text), *(i % (len(text) + 1) for i in at)})
    return [text[a:b] for a, b in pairwise(marks)] or [""]


letters = st.text("abc", max_size=12)


@given(letters, st.lists(st.text("abc", max_size=4), max_size=4), st.lists(st.integers(0, 50)))
@example("abcd", ["abcd", "c"], [])
@example("abab!", ["aba!", "bab"], [1, 2, 3])
@example("aaab", ["aab"], [1, 2, 3])
def test_the_cut_is_the_same_however_the_text_came(
    text: str, stops: list[str], at: list[int]
) -> None:
    assert scan(cut(text, at), stops) == reference(text, stops)


@given(letters, st.lists(st.text("abc", min_size=1, max_size=4), max_size=4))
def test_only_what_could_begin_a_stop_is_held_back(text: str, stops: list[str]) -> None:
    scanner, out = StopScanner(stops), ""
    for end, letter in enumerate(text, 1):
        part, stopped = scanner.push(letter)
        if stopped:
            return
        out += part
        held = text[len(out) : end]
        assert out + held == text[:end]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


def push_all(answer: Answer, outputs: Sequence[Output]) -> list[Piece]:
    pieces = []
    for output in outputs:
        pieces.append(answer.push(output))
        if pieces[-1].finish:
            break
    return pieces


def tokens(text: str | bytes, finish: FinishReason | None = FinishReason.LENGTH) -> list[Output]:
    """One output a byte, the last with `finish`."""
    data = text.encode() if isinstance(text, str) else text
    ends = [None] * (len(data) - 1) + [finish]
    return [Output("r", (byte,), end) for byte, end in zip(data, ends, strict=True)]


def answer(*stops: str) -> Answer:
    return Answer(ByteTokenizer().decoder(), stops)


def test_text_leaves_in_whole_characters_with_running_counts() -> None:
    pieces = push_all(answer(), tokens("aé日"))
    assert [piece.text for piece in pieces] == ["a", "", "é", "", "", "日"]
    assert [piece.output_tokens for piece in pieces] == [1, 2, 3, 4, 5, 6]
    assert [piece.finish for piece in pieces] == [None] * 5 + [FinishReason.LENGTH]


def test_an_unfinished_character_at_the_end_is_shown_as_broken() -> None:
    pieces = push_all(answer(), tokens("a日".encode()[:-1]))
    assert "".join(piece.text for piece in pieces) == "a�"
    assert pieces[-1].finish is FinishReason.LENGTH


def test_held_text_leaves_when_the_answer_ends() -> None:
    pieces = push_all(answer("xyz"), tokens("abxy"))
    assert [piece.text for piece in pieces] == ["a", "b", "", "xy"]


def test_a_stop_ends_the_answer_and_counts_its_own_tokens() -> None:
    pieces = push_all(answer("END"), tokens("abENDcd"))
    assert "".join(piece.text for piece in pieces) == "ab"
    assert (pieces[-1].finish, pieces[-1].output_tokens) == (FinishReason.STOP, 5)


def test_tokens_after_a_stop_in_one_output_don_t_count() -> None:
    piece = answer("b").push(Output("r", tuple(b"abcdef"), FinishReason.LENGTH))
    assert piece == Piece("a", 2, FinishReason.STOP)


def test_a_stop_of_the_last_character_wins_over_length() -> None:
    pieces = push_all(answer("é"), tokens("aé"))
    assert pieces[-1] == Piece("", 3, FinishReason.STOP)


def test_a_stop_that_the_flush_completes_ends_the_answer() -> None:
    """The broken character that only the end reveals may be the stop string itself."""
    pieces = push_all(answer("�"), tokens(b"a\xe6\x97"))
    assert "".join(piece.text for piece in pieces) == "a"
    assert pieces[-1].finish is FinishReason.STOP


@pytest.mark.parametrize("error", [KvIntegrityAbort("tag"), EngineFailed("gone")])
def test_an_engine_s_error_is_raised(error: KvIntegrityAbort | EngineFailed) -> None:
    with pytest.raises(type(error)):
        answer().push(Output("r", finish=FinishReason.ERROR, error=error))


def test_no_stop_strings_hold_nothing_back() -> None:
    scanner = StopScanner(["", ""])
    assert scanner.push("anything") == ("anything", False)
    assert scanner.flush() == ""
