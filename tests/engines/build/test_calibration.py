"""Calibration text: how files are read, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engines.build.calibration import SHIPPED, WINDOW, BadCalibration, calibration
from engines.tokenizer import FolderTokenizer
from tests.engines.build.tiny import model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model("llama", tmp_path_factory.mktemp("model") / "llama")


def test_windows_are_whole_and_a_tenth_is_held_out(folder: Path, tmp_path: Path) -> None:
    """The rest of a text that fills no window is left out."""
    (tmp_path / "text.txt").write_text("x" * (WINDOW * 21 + 5))
    found = calibration(tmp_path / "text.txt", folder)
    assert [len(window) for window in found.windows] == [WINDOW] * 21
    assert found.held_out == [9, 19]
    assert sorted(found.held_out + found.fitted) == list(range(21))


def test_chats_are_rendered_by_the_model_s_own_template(folder: Path, tmp_path: Path) -> None:
    """As requests will be; texts stay as they are."""
    turns = [{"role": "user", "content": "hi" * 400}, {"role": "assistant", "content": "yo" * 400}]
    items = [{"text": "plain" * 100}, {"messages": turns}]
    path = tmp_path / "mixed.jsonl"
    path.write_text("\n".join(map(json.dumps, items)))
    settings = {"chat_template": "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokens = [token for window in calibration(path, folder).windows for token in window]
    decoder = FolderTokenizer(folder).decoder()
    text = "".join(map(decoder.push, tokens))
    assert text.startswith("plain" * 100 + "[user]hihi")
    assert "[assistant]yoyo" in text


def test_a_base_model_reads_chats_as_plain_text(tmp_path: Path) -> None:
    """It has no template, and the text that ships has chats in it."""
    base = model("llama", tmp_path / "base")
    turns = [{"role": "user", "content": "hi" * 300}, {"role": "assistant", "content": "yo" * 300}]
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"messages": turns}))
    tokens = [token for window in calibration(path, base).windows for token in window]
    text = "".join(map(FolderTokenizer(base).decoder().push, tokens))
    assert text.startswith("hi" * 300 + "\n\n" + "yo" * 200)
    assert calibration(SHIPPED, base).windows


def test_a_chat_that_the_template_refuses_is_told(tmp_path: Path) -> None:
    """In the template's own words."""
    strict = model("llama", tmp_path / "strict")
    settings = {"chat_template": "{{ raise_exception('no system here') }}"}
    (strict / "tokenizer_config.json").write_text(json.dumps(settings))
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "system", "content": "Be brief."}]}))
    with pytest.raises(BadCalibration, match=r"mine\.jsonl has a chat .*no system here"):
        calibration(path, strict)
    assert calibration(SHIPPED, strict).windows  # that one isn't the operator's to mend


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("short.txt", b"a few words", "calibration needs 1024 at least"),
        ("bytes.txt", b"\xff\xfe", "cannot read"),
        ("broken.jsonl", b'{"text": "x"}\n{"words": 1}\n', "broken.jsonl:2: expected"),
        ("broken.jsonl", b"[1]\n", "broken.jsonl:1: expected"),
    ],
)
def test_what_can_t_calibrate_is_told(
    folder: Path, tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    """Where it is wrong, and what was expected."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadCalibration, match=said):
        calibration(tmp_path / name, folder)


def test_a_missing_file_is_told(folder: Path, tmp_path: Path) -> None:
    """Not a traceback."""
    with pytest.raises(BadCalibration, match=r"nothing\.txt"):
        calibration(tmp_path / "nothing.txt", folder)


def test_lines_end_where_json_says(tmp_path: Path, folder: Path) -> None:
    """Not at a separator of Unicode's inside of a text, nor is a mark of byte order one of it."""
    path = tmp_path / "mine.jsonl"
    line = json.dumps({"text": "a\u2028b\u0085c" * 200}, ensure_ascii=False)
    path.write_text(f"\ufeff{line}\r\n\n{line}\n", encoding="utf-8", newline="")
    assert calibration(path, folder).windows
