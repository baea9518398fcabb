"""The comments that count an answer along: what is written is what is read."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from runtime.wire import KEEP_ALIVE, Counts, output_comment, parse_comment, prompt_comment

count = st.integers(0, 2**31 - 1)


@given(count, count)
def test_the_prompt_s_counts_are_read_as_written(prompt: int, cached: int) -> None:
    event, end = prompt_comment(prompt, cached), b"\n\n"
    assert event.startswith(b":")
    assert event.endswith(end)
    assert event.count(b"\n") == 2
    assert parse_comment(event.removesuffix(end)) == Counts(prompt=prompt, cached=cached)


@given(count)
def test_the_output_s_count_is_read_as_written(output: int) -> None:
    line = output_comment(output)
    assert line.startswith(b":")
    assert line.count(b"\n") == 1
    assert parse_comment(line.removesuffix(b"\n")) == Counts(output=output)


@pytest.mark.parametrize(
    "line",
    [b":", b": ", KEEP_ALIVE.strip(), b": t", b": t=", b": t=x", b": t=-1", b": t=1.5", b": T=1",
     b": t==1", b": tt=1", b": t = 1", b":\xff\x00", b": t=\xb2"],
)  # fmt: skip
def test_other_comments_count_nothing(line: bytes) -> None:
    assert parse_comment(line) == Counts()


@given(st.binary(max_size=100).filter(lambda b: b"\n" not in b))
def test_no_comment_breaks_the_reader(line: bytes) -> None:
    parse_comment(b":" + line)
