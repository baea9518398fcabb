"""A whole evaluation in this process: its figures are those that torch makes of whole texts."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engines.api import EngineError, EngineSpec
from engines.embedded.engine import create
from engines.embedded.evaluation.choices import choices
from engines.embedded.evaluation.evaluate import evaluate
from engines.embedded.evaluation.reading import logits_of
from engines.tokenizer import FolderTokenizer

PROMPTS = ["the quick brown fox jumps over the lazy dog " * 4, "rain on tin"]
ANSWER = " and so on"


@pytest.fixture
def job(tiny_dir: Path, tmp_path: Path) -> dict[str, Any]:
    lines = [{"prompt": PROMPTS[0]}, {"prompt": PROMPTS[1], "answer": ANSWER}]
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return {
        "folders": [str(tiny_dir)],
        "options": {"page_size": 4, "max_batch_tokens": 32, "max_running": 8},
        "prompts": str(path),
        "rounds": 0,
        "memory_bytes": 1 << 40,
    }


def whole(tiny_dir: Path, options: dict[str, Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Log probabilities by text over each kind of pages, all at once."""
    encode = FolderTokenizer(tiny_dir).encode
    found = []
    for choice in choices([tiny_dir], options, 200):
        engine = create(EngineSpec(choice.name, str(choice.folder), choice.options))
        texts = [encode(PROMPTS[0]), encode(PROMPTS[1] + ANSWER)]
        logits = [np.concatenate(list(logits_of(engine, 4, text))) for text in texts]
        found.append([torch.from_numpy(one).double().log_softmax(1) for one in logits])
        engine.close()
    return found[0], found[1]


def test_figures_are_those_of_whole_texts(job: dict[str, Any], tiny_dir: Path) -> None:
    """Of every token, the last one's opinion included; prompts and answers apart."""
    told = evaluate(job, lambda *_: None)
    base, fp8 = told["choices"]
    exact, other = whole(tiny_dir, job["options"])
    each = torch.cat([(a.exp() * (a - b)).sum(1) for a, b in zip(exact, other, strict=True)])
    same = torch.cat([a.argmax(1) == b.argmax(1) for a, b in zip(exact, other, strict=True)])
    assert told["tokens"] == len(each)
    assert fp8["kl_mean"] == pytest.approx(float(each.mean()))
    assert fp8["kl_p99"] == pytest.approx(float(each.quantile(0.99)))
    assert fp8["top1_agreement"] == pytest.approx(float(same.double().mean()))
    assert base["tokens_per_s"] is None
    encode = FolderTokenizer(tiny_dir).encode
    first, second = encode(PROMPTS[0]), encode(PROMPTS[1] + ANSWER)
    start = len(encode(PROMPTS[1]))
    nats = [
        -logs[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
        for logs, tokens in zip(exact, (first, second), strict=True)
    ]
    prompts = torch.cat([nats[0], nats[1][: start - 1]])
    assert base["perplexity_prompts"] == pytest.approx(math.exp(float(prompts.mean())))
    assert base["perplexity_answers"] == pytest.approx(math.exp(float(nats[1][start - 1 :].mean())))


def test_progress_is_told_by_stages(job: dict[str, Any]) -> None:
    """Each one from nothing to all of it, and never back."""
    stages: dict[str, list[tuple[int, int]]] = {}
    job["rounds"] = 1
    told = evaluate(job, lambda stage, *so_far: stages.setdefault(stage, []).append(so_far))
    assert list(stages) == ["loading", "reading", "timing"]
    for so_far in stages.values():
        done = [number for number, _ in so_far]
        assert done == sorted(done)
        assert (done[0], done[-1]) == (0, so_far[-1][1])
    assert {n for c in told["choices"] for n in c["tokens_per_s"]["decode"]} == {"1", "8"}


def test_what_cant_be_had_is_left_out_with_its_reason(job: dict[str, Any]) -> None:
    """Scales of FP8 pages that nobody calibrated; the rest is compared."""
    job["options"]["kv_scales"] = "checkpoint"
    told = evaluate(job, lambda *_: None)
    assert [choice["kv"] for choice in told["choices"]] == ["bf16"]
    (skipped,) = told["skipped"]
    assert (skipped["weights"], skipped["kv"]) == ("bf16", "fp8")
    assert "no KV scales" in skipped["reason"]


def test_weights_that_compute_no_numbers_are_named(
    job: dict[str, Any], tiny_dir: Path, tmp_path: Path
) -> None:
    """Among several folders it has to be said which."""
    broken = Path(shutil.copytree(tiny_dir, tmp_path / "broken"))
    tensors = load_file(broken / "model.safetensors")
    tensors["model.norm.weight"].fill_(math.nan)
    save_file(tensors, broken / "model.safetensors")
    with pytest.raises(EngineError, match=r"^bf16 broken weights, bf16 KV: .* isn't finite"):
        evaluate(job | {"folders": [str(tiny_dir), str(broken)]}, lambda *_: None)


def test_a_file_of_weights_that_is_a_link_to_nothing_is_named(
    job: dict[str, Any], tiny_dir: Path, tmp_path: Path
) -> None:
    """As a cache that was cleared leaves them."""
    cleared = Path(shutil.copytree(tiny_dir, tmp_path / "cleared"))
    (cleared / "model.safetensors").unlink()
    (cleared / "model.safetensors").symlink_to(tmp_path / "blob")
    with pytest.raises(EngineError, match=r"cleared/model\.safetensors is no regular file"):
        evaluate(job | {"folders": [str(cleared)]}, lambda *_: None)
