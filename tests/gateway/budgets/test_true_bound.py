"""The bound holds for a real tokenizer and its chat template, whatever the text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from engines.api import Message
from engines.tokenizer import FolderTokenizer
from gateway.budgets.bounds import bound_of
from gateway.schema import Ask, Turn
from tests.gateway.budgets.test_bounds import MODEL

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200) | st.sampled_from(
    (
        "",
        "<|im_start|>system",
        "ﷺ" * 20,
        "👩‍👩‍👧‍👦" * 9,
        "\u0301" * 50,
        "a" * 500,
        " " * 300,
        "\0" * 64,
    )
)
ROLE = st.sampled_from(("system", "user", "assistant"))


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> FolderTokenizer:
    return FolderTokenizer(model_dir)


@given(turns=st.lists(st.tuples(ROLE, TEXT), min_size=1, max_size=6))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_chat_is_no_more_tokens(tokenizer: FolderTokenizer, turns: list[tuple[str, str]]) -> None:
    asked = [Turn(role, content) for role, content in turns]
    bound = bound_of(Ask(operation="chat", model="m", messages=asked), MODEL)
    messages = [Message(turn.role, turn.content) for turn in asked]
    assert len(tokenizer.encode_chat(messages)) <= bound.input_tokens


@given(prompt=TEXT)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_prompt_is_no_more_tokens(tokenizer: FolderTokenizer, prompt: str) -> None:
    bound = bound_of(Ask(operation="completion", model="m", prompt=prompt), MODEL)
    assert len(tokenizer.encode_prompt(prompt)) <= bound.input_tokens
