"""What a server prints becomes log lines: all of a start, and nothing that may quote a request."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from runtime.trt.said import MAX_CHARS, Said, secrets_in

PROMPT = "the patient's name is Zyxwv"
THEIRS = [
    "[11/30/2026-17:12:58] [TRT-LLM] [I] PyTorchConfig(extra_resource_managers={})",
    "[11/30/2026-17:12:58] [TRT-LLM] [RANK 0] [W] Overriding the KV dtype",
    "[TensorRT-LLM][ERROR] Assertion failed: no free slots",
]


def heard(said: Said, text: str, *, serves: bool) -> list[str]:
    said.may_quote = serves
    return [line.text for line in said.heard(text.encode())]


def test_all_of_a_start_is_told_with_its_levels() -> None:
    text = "\n".join([*THEIRS, "ValueError: no GPU", ""])
    lines = Said([]).heard(text.encode())
    assert [line.text for line in lines] == [*THEIRS, "ValueError: no GPU"]
    assert [line.level for line in lines] == ["info", "warning", "error", "error"]


@pytest.mark.parametrize(
    "line",
    [
        "INFO:     Started server process [4711]",
        "INFO:     Application startup complete.",
        "INFO:     Uvicorn running on http://127.0.0.1:8000 (Press CTRL+C to quit)",
    ],
)
def test_from_its_http_server_s_first_word_on_a_line_may_quote_a_request(line: str) -> None:
    """Whoever sends requests needn't have waited for the first token."""
    said = Said([])
    texts = [found.text for found in said.heard(f"{PROMPT}\n{line}\n{PROMPT}\n".encode())]
    assert PROMPT in texts[0]
    assert len(texts) == 2


@pytest.mark.parametrize(
    "line",
    [
        f"ValueError: can't encode {PROMPT}",
        f"pydantic_core.ValidationError: 1 validation error, input_value='{PROMPT}'",
        f"[11/30/2026-17:12:58] [TRT-LLM] [E] request failed: {{'prompt': \"{PROMPT}\"}}",
        f"[TRT-LLM] [E] bad message '{PROMPT}' at position 3",
        f"ERROR:    Exception in ASGI application ({PROMPT})",
        f"[TRT-LLM] [E] Request failed: {PROMPT}",
        PROMPT,
        f"  {PROMPT}",
        f"  raise ValueError('{PROMPT}')",
        f'  File "{PROMPT}',
    ],
)
def test_a_server_that_serves_quotes_no_request(line: str) -> None:
    said = Said([])
    assert "Zyxwv" not in "".join(heard(said, f"{line}\n", serves=True))
    assert "Zyxwv" not in said.last + said.complaint
    assert "Zyxwv" in "".join(heard(said, f"{line}\n", serves=False))


def test_of_a_traceback_the_places_and_the_type_stay() -> None:
    text = f"""Traceback (most recent call last):
  File "/x/openai_server.py", line 812, in openai_chat
    prompt = "{PROMPT}"
ValueError: {PROMPT}
"""
    said = Said([])
    assert heard(said, text, serves=True) == [
        "Traceback (most recent call last):",
        '  File "/x/openai_server.py", line 812, in openai_chat',
        "ValueError",
    ]
    assert (said.withheld, said.complaint) == (1, "ValueError")


def test_own_words_go_up_to_where_they_could_begin_to_quote() -> None:
    lines = [
        "[11/30/2026-17:12:58] [TRT-LLM] [RANK 0] [E] Encountered an error in forward: x",
        "[TensorRT-LLM][ERROR] Assertion failed: no free slots (/src/a.cpp:12)",
        "INFO:     Shutting down",
    ]
    assert heard(Said([]), "\n".join([*lines, ""]), serves=True) == [
        "[11/30/2026-17:12:58] [TRT-LLM] [RANK 0] [E] Encountered an error in forward:…",
        "[TensorRT-LLM][ERROR] Assertion failed: no free slots …",
        "INFO:     Shutting down",
    ]


def test_lines_come_whole_however_the_bytes_come() -> None:
    said = Said([])
    assert heard(said, "[TRT-LLM] [I] lo", serves=False) == []
    assert heard(said, "ading\nand", serves=False) == ["[TRT-LLM] [I] loading"]
    assert said.heard(b" \xff\n")[0].text == "and \ufffd"


def test_a_progress_bar_is_one_line_and_requests_are_none() -> None:
    said = Said([])
    assert heard(said, "Loading: 10%\rLoading: 55%\r", serves=False) == []
    assert heard(said, "Loading: 100%\r\n", serves=False) == ["Loading: 100%"]
    access = 'INFO:     127.0.0.1:4 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    assert heard(said, access, serves=True) == []
    assert heard(said, "\n  \n", serves=False) == []


def test_no_secret_is_told_and_no_line_is_endless() -> None:
    env = {"HF_TOKEN": "hf_sesame-sesame", "MY_API_KEY": "k-123456", "HOME": "/root", "PIN": "1"}
    said = Said(secrets_in(env))
    assert heard(said, "using hf_sesame-sesame and k-123456 in /root\n", serves=False) == [
        "using *** and *** in /root"
    ]
    assert len(heard(said, "x" * 100_000 + "\n", serves=False)[0]) == MAX_CHARS


@given(st.lists(st.binary(max_size=80)), st.booleans())
def test_whatever_comes_is_taken(parts: list[bytes], serves: bool) -> None:
    said = Said(["sesame-sesame"])
    said.may_quote = serves
    for part in [*parts, b"sesame-sesame\n"]:
        for line in said.heard(part):
            assert "sesame-sesame" not in line.text
            assert len(line.text) <= MAX_CHARS


@pytest.mark.parametrize("in_two", [False, True])
def test_no_half_of_a_secret_is_told_where_a_long_line_was_cut(in_two: bool) -> None:
    secret = "sesame-0123456789"
    for after in range(1570, 1610):
        said = Said([secret])
        line = b"x" * 900 + secret.encode() + b"y" * after
        parts = [line[:1000], line[1000:] + b"\n"] if in_two else [line + b"\n"]
        told = "".join(one.text for part in parts for one in said.heard(part))
        assert not any(half in told for half in ("sesame", "6789", "89y"))
