"""Speculation through the whole stack: the same text, usage and price, in fewer steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.clients import DONE, Stream
from tests.e2e.ledger import records
from tests.e2e.test_planted_faults import value
from tests.stack import Stack, running

pytestmark = pytest.mark.slow

LETTER = "The sailor found a lantern near the harbour. The baker hid the map in the old library. "
PROMPT = f"A letter:\n{LETTER * 2}\n\nThe letter, word for word:\n{LETTER[:30]}"
MODEL = """
[[models]]
id = "{id}"
engine = "embedded"
min_hosts = 1
path = "{path}"
options = {{ kv_memory_bytes = 67108864, speculation = {drafts} }}
price = {{ input = "0.10", cached_input = "0.02", output = "0.30" }}
"""
STOP = "library"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[Stack]:
    models = (("plain", 0), ("drafting", 8))
    config = "".join(MODEL.format(id=id, path=model_dir, drafts=drafts) for id, drafts in models)
    with running(tmp_path_factory.mktemp("speculation"), config) as stack:
        yield stack
        assert "Traceback" not in stack.log.read_text()


def ask(stack: Stack, model: str, **more: Any) -> dict[str, Any]:
    body = {"model": model, "prompt": PROMPT, "max_tokens": 48, "temperature": 0} | more
    with stack.client() as client:
        answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def test_the_text_is_the_same_in_fewer_steps(stack: Stack) -> None:
    """Whole and streamed, and what is billed."""
    plain, drafting = ask(stack, "plain"), ask(stack, "drafting")
    assert drafting["choices"] == plain["choices"]
    assert drafting["usage"] == plain["usage"]
    steps, drafted, accepted = (
        {model: value(stack, f'{name}{{model="{model}"}}') for model in ("plain", "drafting")}
        for name in (
            "engine_steps_total",
            "engine_drafted_tokens_total",
            "engine_accepted_tokens_total",
        )
    )
    assert drafted["plain"] == 0
    assert drafted["drafting"] >= accepted["drafting"] > 10
    assert steps["drafting"] < steps["plain"] - 10
    billed = {(row["output_tokens"], row["billable"]) for row in records(stack)}
    assert billed == {(plain["usage"]["completion_tokens"], 1)}


def test_a_stop_string_inside_an_accepted_run_ends_the_text_there(stack: Stack) -> None:
    """What the step had accepted behind it is neither told nor billed."""
    plain, drafting = (ask(stack, model, stop=[STOP]) for model in ("plain", "drafting"))
    assert drafting["choices"] == plain["choices"]
    assert drafting["choices"][0]["finish_reason"] == "stop"
    assert STOP not in drafting["choices"][0]["text"]
    assert drafting["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"] < 48


def test_a_stream_has_several_tokens_a_piece(stack: Stack) -> None:
    """Fewer frames, the same text, and an end."""
    frames: dict[str, int] = {}
    for model in ("plain", "drafting"):
        body = {"model": model, "prompt": PROMPT, "max_tokens": 48, "temperature": 0}
        told = Stream(stack, body | {"stream": True}).end()
        assert told.endswith(DONE)
        frames[model] = told.count(b"data: ")
    assert frames["drafting"] < frames["plain"] - 10
