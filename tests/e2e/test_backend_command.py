"""`bulkhead backend test` on a real llama.cpp server, and on a gateway of ours."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import llama_server
from gateway.conformance import caches
from gateway.conformance.backend import Target
from gateway.conformance.run import TRIALS, trials
from gateway.conformance.verdict import Verdict
from tests.stack import BULKHEAD, REPO, SOAK, Stack, fake_config, running

# This llama.cpp finishes unstreamed answers whoever has left.
RUNS_ON = {"cancelled sent, no headers", "cancelled unstreamed"}
TOO_LONG = "a prompt that is too long"


def tried(url: str, *options: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """The report's lines by name: (verdict, what was seen)."""
    done = subprocess.run(
        [*BULKHEAD, "backend", "test", url, "--json", *options],
        capture_output=True, text=True, cwd=REPO, timeout=900, env=env,
    )  # fmt: skip
    assert done.stdout, done.stderr
    lines = json.loads(done.stdout)["lines"]
    assert done.returncode == any(line["verdict"] == "fail" for line in lines)
    return {line["name"]: (line["verdict"], line["seen"]) for line in lines}


@pytest.mark.slow
async def test_a_real_llama_cpp_server_does_as_it_must(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All lines in the long form; the short one has a pair of prompts, and no long stories."""
    if not SOAK:
        monkeypatch.setattr(caches, "PAIRS", 1)
        for name in ("characters", "stop texts", "cancelling"):
            monkeypatch.delitem(TRIALS, name)
    options = {"slots": 4, "threads": 1, "ctx": 8192}
    with llama_server.running(model_dir / "model.gguf", **options) as url:
        target = Target(url, kind="llamacpp")
        lines = [line async for line in trials(target)]
        failed = {line.name: line.seen for line in lines if line.verdict is Verdict.FAIL}
        for name in [name for name in failed if failed[name].startswith("given up after")]:
            del failed[name]  # it was given up; how soon is the machine's, which others use too
        known = RUNS_ON if SOAK else RUNS_ON | {"cross-tenant hits by time"}  # of one pair: chance
        assert failed.keys() <= known, failed
        assert {line.name: line for line in lines}[TOO_LONG].seen.endswith(
            "context_length_exceeded"
        )


def test_a_gateway_is_a_server_like_any_whose_tenants_have_keys(tmp_path: Path) -> None:
    """Its tenants are kept apart by their keys, and its refusals have codes that we know."""
    with running(tmp_path, fake_config(step_s=0.001)) as stack:
        keys = {"ONE": stack.key, "TWO": key_of(stack, "another")}
        names = ("--api-key-env", "ONE", "--second-key-env", "TWO", "--model", "echo")
        found = tried(f"{stack.url}/v1", *names, env={**os.environ, **keys})
        assert {name for name, (verdict, _) in found.items() if verdict == "fail"} == set(), found
        assert found[TOO_LONG][1].endswith("context_length_exceeded")


def key_of(stack: Stack, tenant: str) -> str:
    stack.cli("tenants", "create", tenant)
    return stack.cli("keys", "create", tenant).strip()
