"""The count that shows no leak does see one: the same questions to hosts that are made to leak."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import httpx
import pytest

from benchmarks.leaky_engine import SALT_DROPPED
from tests.conftest import MODEL_ID
from tests.e2e.prefix import PAGE, reusable
from tests.stack import Stack, running
from tests.waiting import wait_for

CONFIG = """
[[models]]
id = "{id}"
engine = "embedded"
min_hosts = 1
path = "{folder}"
"""
PROMPT = list(range(10_000, 10_000 + 5 * PAGE + 3))


def hits(stack: Stack, key: str) -> int:
    """Tokens of the prompt that the engine counts as found in its cache."""
    before = stack.host_stats()["cached_tokens"]
    headers = {"authorization": f"Bearer {key}"}
    body = {"model": MODEL_ID, "prompt": PROMPT, "max_tokens": 1}
    answer = httpx.post(f"{stack.url}/v1/completions", headers=headers, json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    found: int = stack.host_stats()["cached_tokens"] - before
    return found


@pytest.mark.slow
def test_a_domain_lost_on_the_way_to_the_engine_is_counted(tmp_path: Path, model_dir: Path) -> None:
    """Page tags can't tell: to the engine all are one. So the count across tenants must."""
    program = (sys.executable, "-m", "benchmarks.leaky", SALT_DROPPED)
    config = CONFIG.format(id=MODEL_ID, folder=model_dir)
    with running(tmp_path, config, program=program) as stack:
        stack.cli("tenants", "create", "other")
        other = stack.cli("keys", "create", "other").strip()
        models = partial(httpx.get, f"{stack.url}/v1/models")
        wait_for(lambda: models(headers={"authorization": f"Bearer {other}"}).status_code == 200)
        assert hits(stack, stack.key) == 0
        assert hits(stack, other) == reusable(len(PROMPT)) > 0
        assert stack.host_stats()["tag_mismatches"] == 0
