"""gpt-oss models of TensorRT-LLM's: no salt keeps their tenants apart, so none may be assumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.config_file import parse

ATTACHED = '[[models]]\nid = "{id}"\nengine = "openai"\nkind = "{kind}"\nurl = "http://x/v1"\n'
SERVED = '[[models]]\nid = "{id}"\nengine = "tensorrt-llm"\n{more}[models.trt]\n{trt}'
HOOK = 'version = "1.3.0rc22"\n'
OFF = "guard = false\n"


def told(text: str, folder: Path | None = None) -> tuple[list[str], list[str]]:
    """Where there are errors, and where warnings, but for what it costs."""
    report = parse(text, "", folder=folder).report
    found = [[fault.path.removeprefix("models[0].") for fault in report.errors]]
    found.append([fault.path.removeprefix("models[0].") for fault in report.warnings])
    return found[0], [path for path in found[1] if path != "price"]


@pytest.mark.parametrize(
    ("id", "kind", "more", "wrong"),
    [
        ("gpt-oss-20b", "trtllm", "", ["cache"]),
        ("m", "trtllm", 'upstream_model = "openai/GPT_OSS-120b"\n', ["cache"]),
        ("gpt-oss-20b", "trtllm", 'cache = "off"\n', []),
        ("gpt-oss-20b", "trtllm", 'cache = "shared-accepted"\n', []),
        ("gpt-oss-20b", "trtllm", 'cache = "salted"\n', []),
        ("gpt-oss-20b", "vllm", "", []),
        ("gpt-jossa", "trtllm", "", []),
        ("llama", "trtllm", "", []),
    ],
)
def test_an_attached_one_has_to_say_how_tenants_are_kept_apart(
    id: str, kind: str, more: str, wrong: list[str]
) -> None:
    assert told(ATTACHED.format(id=id, kind=kind) + more) == (wrong, [])


def test_salted_is_believed_and_told_of(tmp_path: Path) -> None:
    text = ATTACHED.format(id="gpt-oss-20b", kind="trtllm") + 'cache = "salted"\n'
    assert told(text, tmp_path) == ([], ["cache"])


@pytest.mark.parametrize("cache", ["", 'cache = "salted"\n'])
def test_a_tokenizer_of_one_counts_more_than_any_name(cache: str, tmp_path: Path) -> None:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt_oss"}))
    text = ATTACHED.format(id="m", kind="trtllm") + f'tokenizer = "{folder}"\n{cache}'
    errors, _ = told(text, tmp_path)
    assert "cache" in errors
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    errors, _ = told(text, tmp_path)
    assert "cache" not in errors


@pytest.mark.parametrize(
    ("trt", "more", "wrong"),
    [
        (HOOK, "", ["cache"]),
        (OFF, "", ["cache"]),
        (OFF + "block_reuse = false\n", "", []),
        (HOOK + "block_reuse = false\n", "", ["trt.guard"]),
        (HOOK, 'cache = "salted"\n', []),
        (HOOK, 'path = "/elsewhere/gpt-oss-20b"\n', ["cache"]),
    ],
)
def test_a_checkpoint_elsewhere_is_judged_by_its_name(
    trt: str, more: str, wrong: list[str]
) -> None:
    model = "m" if "path" in more else "gpt-oss-20b"
    assert told(SERVED.format(id=model, trt=trt, more=more)) == (wrong, [])


def test_a_checkpoint_here_is_judged_by_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "gpt-oss-like").mkdir()
    config = {"model_type": "mixtral", "num_attention_heads": 8}
    (tmp_path / "gpt-oss-like/config.json").write_text(json.dumps(config))
    more = f'path = "{tmp_path}/gpt-oss-like"\n'
    assert told(SERVED.format(id="gpt-oss-like", trt=HOOK, more=more)) == ([], [])
