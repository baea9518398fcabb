"""`bulkhead eval` as an operator runs it: on the packaged model, with texts of one's own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.engines.build import tiny
from tests.stack import BULKHEAD, REPO
from tests.terminal import Terminal
from tests.waiting import wait_for

SECRET = "canary-5519"
LINES: list[dict[str, Any]] = [
    {"prompt": f"The old lighthouse {SECRET} stood on the cliff above the harbour. " * 12},
    {
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "answer": "The capital of France is Paris.",
    },
]
CONFIG = """
[[models]]
id = "small"
engine = "embedded"
path = "{path}"
options = {{ max_batch_tokens = 100, threads = 1 }}
price = {{ currency = "CHF" }}

[[models]]
id = "echo"
engine = "fake"
"""
DEADLINE_S = 900  # with every core taken by others


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, LINES)) + "\n")
    return path


@pytest.fixture
def config(tmp_path: Path, model_dir: Path) -> Path:
    path = tmp_path / "bulkhead.toml"
    path.write_text(CONFIG.format(path=model_dir))
    return path


def evaluate(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [*BULKHEAD, "eval", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=REPO, timeout=DEADLINE_S, check=False
    )


@pytest.mark.slow
def test_kinds_of_pages_are_compared_on_ones_own_texts(prompts: Path, config: Path) -> None:
    """A model of the configuration; texts longer than a step; figures that fit each other."""
    done = evaluate(
        *("small", "--prompts", prompts, "--config", config, "--state", config.parent / "s"),
        *("--rounds", "1", "--cost-per-hour", "3.60", "--json"),
    )
    assert done.returncode == 0, done.stderr
    assert SECRET not in done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["texts"] == 2
    assert told["tokens"] > 200
    assert told["price_per_hour"] == {"amount": "3.60", "currency": "CHF"}
    base, fp8 = told["choices"][:2]
    assert [(c["weights"], c["kv"]) for c in (base, fp8)] == [("bf16", "bf16"), ("bf16", "fp8")]
    assert (base["kl_mean"], base["kl_p99"], base["top1_agreement"]) == (0, 0, 1)
    assert 0 < fp8["kl_mean"] < 0.2
    assert fp8["kl_mean"] < fp8["kl_p99"]
    assert 0.6 < fp8["top1_agreement"] <= 1
    assert fp8["kv_bytes_per_token"] * 2 == base["kv_bytes_per_token"]
    for choice in (base, fp8):
        assert 1 < choice["perplexity_answers"] < 5, "Paris it is"
        assert 1 < choice["perplexity_prompts"] < 100
        for phase, rates in choice["tokens_per_s"].items():
            assert set(rates) == {"1", "8"}
            for requests, rate in rates.items():
                assert rate > 0
                cost = choice["cost_per_million"][phase][requests]
                assert cost == pytest.approx(1000 / rate)


@pytest.mark.slow
def test_4_bit_weights_are_found_beside_their_source(tmp_path: Path) -> None:
    """As `bulkhead build` made them, of a model with Qwen2's biases."""
    source = tiny.model("qwen2", tmp_path / "models" / "qwen")
    tiny.built(source, tmp_path / "models" / "qwen-int4", tiny.text(tmp_path))
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text(json.dumps({"prompt": "quick brown fox " * 12, "answer": "over tin"}))
    done = evaluate(
        *(source, "--prompts", prompts, "--state", tmp_path / "s", "--rounds", "1", "--json")
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    choices = told["choices"]
    assert told["skipped"] == []
    assert [(c["weights"], c["kv"]) for c in choices] == [
        (weights, kv) for weights in ("bf16", "int4 g64") for kv in ("bf16", "fp8")
    ]
    assert choices[2]["weight_bytes"] < choices[0]["weight_bytes"]
    assert choices[2]["folder"] == str(tmp_path / "models" / "qwen-int4")
    for choice in choices[1:]:
        assert choice["kl_mean"] > 0
        assert choice["tokens_per_s"]["decode"]["8"] > 0
    assert choices[2]["kl_mean"] > choices[1]["kl_mean"], "4 bits are fewer than 8"


def test_every_fault_of_the_prompts_is_told(prompts: Path, model_dir: Path) -> None:
    """With its line, at once, before weights are loaded; never what a prompt says."""
    with prompts.open("a") as file:
        file.write(f'{{"prompt": "{SECRET}"\n{{"promt": "{SECRET}"}}\n\n')
        file.write(json.dumps({"prompt": f"{SECRET} " * 5000}) + "\n")
    done = evaluate(model_dir, "--prompts", prompts)
    assert done.returncode == 1
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 4
    assert lines[0] == f"Error: {prompts}: line 3: isn't JSON from column 25 on"
    assert lines[1].startswith(f"{prompts}: line 4: has an unknown key 'promt'")
    assert lines[2].startswith(f"{prompts}: line 4: needs either")
    assert "line 6: has " in lines[3]
    assert lines[3].endswith("tokens, and the model takes 8192")
    assert SECRET not in done.stderr


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            "nope",
            "'nope' is no model of the configuration (small, echo), no pinned source "
            "(smollm2-135m-instruct), and no folder with a config.json",
        ),
        ("echo", "echo has an engine 'fake': there is nothing to compare"),
    ],
)
def test_what_cant_be_compared_is_told(prompts: Path, config: Path, model: str, words: str) -> None:
    """In a sentence."""
    done = evaluate(model, "--prompts", prompts, "--config", config, "--state", config.parent / "s")
    assert done.returncode == 1
    assert done.stderr == f"Error: {words}\n"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_one_that_is_interrupted(
    prompts: Path, model_dir: Path, number: signal.Signals
) -> None:
    """A bar is drawn; a signal ends the command and the process that it had started."""
    terminal = Terminal(*BULKHEAD, "eval", str(model_dir), "--prompts", str(prompts))
    try:
        terminal.wait_for("loading weights")
        pid = terminal.process.pid
        (child,) = children(pid)
        if number == signal.SIGINT:
            os.write(terminal.controller, b"\x03")
        else:
            terminal.process.send_signal(number)
        code = terminal.process.wait(60)
        assert code == (-number if number == signal.SIGKILL else 128 + number)
        wait_for(lambda: not Path(f"/proc/{child}").exists(), timeout_s=60)
        assert "Traceback" not in terminal.text
    finally:
        terminal.close()


def children(pid: int) -> list[int]:
    told = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in told.split()]
