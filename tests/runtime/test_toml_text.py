"""Odd TOML ends in a sentence, whatever the parser makes of it."""

from __future__ import annotations

import pytest

from runtime.config.report import Report
from runtime.config.toml_text import MAX_BYTES, MAX_DEPTH, BadText, tables
from runtime.config_file import toml


@pytest.mark.parametrize(
    "text",
    [
        "x=" + "[" * 5000 + "]" * 5000,
        "x=" + "{a=" * 3000 + "1" + "}" * 3000,
        ".".join("a" * 2000) + " = 1",
        "[" + ".".join("a" * 200) + "]",
        "port = " + "9" * 5000,
        "x = 2024-13-01",
        b"x = '\xff'",
        "#" * (MAX_BYTES + 1),
    ],
    ids=["lists", "tables", "a dotted key", "a header", "digits", "a month", "bytes", "size"],
)
def test_what_cannot_be_walked_is_a_fault(text: str | bytes) -> None:
    with pytest.raises(BadText):
        tables(text)
    report = Report()
    assert toml(text, report) is None
    assert [fault.path for fault in report.errors] == [""]


def test_what_is_deep_but_not_too_deep_is_taken() -> None:
    key = ".".join("a" * (MAX_DEPTH - 1))
    assert tables(f"{key} = 1")
    with pytest.raises(BadText, match="levels deep"):
        tables(f"{key}.a.a = 1")
