"""YAML that we write is read as what was meant, by YAML 1.1's readers too."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st
from yamllint import linter
from yamllint.config import YamlLintConfig

from engines.trtllm.yaml_text import Key, plain, yaml_text

LINT = YamlLintConfig("extends: default\nrules: {line-length: {max: 100}}")
TEXT = st.characters(codec="utf-8")  # all but halves of surrogate pairs
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(TEXT)
)
LINES = st.lists(st.text("ab #:-\t\u2028é", max_size=6), min_size=1).map("\n".join)
NAMES = st.text(TEXT, max_size=30)
VALUES = st.recursive(
    SCALARS | LINES, lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner), max_leaves=12
)


@given(st.dictionaries(NAMES, VALUES, min_size=1), st.text())
def test_what_was_written_is_read_back(settings: dict[str, Any], why: str) -> None:
    keys = tuple(Key(name, value, why) for name, value in settings.items())
    assert yaml.safe_load(yaml_text(keys)) == settings == plain(keys)


@pytest.mark.parametrize(
    "text",
    ["no", "NO", "off", "y", "~", "null", "", " ", "1e5", "0x1f", "1_000", "12:30:45", "1.0", ".5",
     "2026-11-30", "c:/models: x", "a #b", "- a", "&a", "*a", "!!int 3", "a\nb", "a\r\nb", "'", '"',
     "\\", "%a", "@a", "`a", "{a}", "[a]", "a: b", "a,b", "\u2028", "\ufeff", "\x00", "\x85", "=",
     "<<", "yes ", "\ttab", "naïve", "日本", "🙂", "NaN", ".inf", "0o17", "017", "+1", "?a", "|"],
)  # fmt: skip
def test_strings_that_yaml_would_misread_are_quoted(text: str) -> None:
    written = yaml_text((Key(text, [text, {text: text}]),))
    assert yaml.safe_load(written) == {text: [text, {text: text}]}


@pytest.mark.parametrize("number", [1e-05, 1e16, -1e300, 5e-324, 0.9, -0.0, 1.0])
def test_a_number_stays_one(number: float) -> None:
    """PyYAML reads 1e-05, without a point, as text."""
    found = yaml.safe_load(yaml_text((Key("a", number),)))["a"]
    assert found == number
    assert isinstance(found, float)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), "\ud800", b"x"])
def test_what_no_setting_can_be_is_refused(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        yaml_text((Key("a", value),))


def test_a_document_is_told_why_and_is_good_yaml() -> None:
    inner = (Key("b", 1, "because " * 30), Key("c", {}), Key("d", []), Key("e", ["x", {"f": None}]))
    text = yaml_text((Key("a", inner, "two\n\nparagraphs"), Key("g", True)), "what this is")
    assert plain(yaml.safe_load(text)) == {"a": plain(inner), "g": True}
    assert text.startswith("# what this is\n---\n# two\n#\n# paragraphs\na:\n  # because")
    assert [str(problem) for problem in linter.run(text, LINT)] == []
