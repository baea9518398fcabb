"""The books of a real Bulkhead: they agree with its engines' own counters, and are sealed."""

from __future__ import annotations

import json
import os
from typing import Any

from tests.e2e.asking import eventually
from tests.e2e.ledger import records
from tests.stack import Stack

MODEL = "smollm2-135m-instruct"
LONG = "A hull is divided by bulkheads, so that a leak in one part does not reach another. " * 20


def reconciled(stack: Stack) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(stack.cli("ledger", "reconcile", "--json"))
    return found


def test_what_is_billed_is_what_the_engine_has_computed_and_reused(real_stack: Stack) -> None:
    with real_stack.client() as client:
        for stream in (False, True, True):
            body = {"model": MODEL, "prompt": LONG, "max_tokens": 8, "stream": stream}
            assert client.post("/v1/completions", json=body).status_code == 200
        body = {"model": MODEL, "prompt": LONG, "max_tokens": 400, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            for _ in answer.iter_raw():
                break  # it leaves in mid-stream
    eventually(lambda: all(row["state"] != "open" for row in records(real_stack)), "it's settled")
    found = reconciled(real_stack)
    assert found["differences"] == []
    (model,) = [one for one in found["engines"] if one["model"] == MODEL]
    assert model["faults"] == []
    assert model["recorded"]["cached_input"] > 0, "the prompt was reused"
    assert model["counted"]["cached_input"] >= model["recorded"]["cached_input"]
    assert 0.5 < model["capture_rate"] <= 1


def test_records_are_sealed_beside_the_requests(real_stack: Stack, tmp_path: Any) -> None:
    closed = len(records(real_stack))

    def verified() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(real_stack.cli("ledger", "verify", "--json"))
        return found

    eventually(lambda: verified()["records"] >= closed, "all are sealed")
    kept = tmp_path / "checkpoint.json"
    real_stack.cli("ledger", "checkpoint", "-o", os.fspath(kept))
    assert "none differs" in real_stack.cli("ledger", "verify", "--checkpoint", os.fspath(kept))
