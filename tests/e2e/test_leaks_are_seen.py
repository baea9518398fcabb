"""Hosts made to leak: the count of hits sees what page tags can't, and the tags see the rest."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

from benchmarks.leaky_engine import DOMAIN_NOT_IN_KEY, SALT_DROPPED
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


@contextmanager
def leaky(folder: Path, model_dir: Path, fault: str) -> Iterator[tuple[Stack, str]]:
    """A stack whose hosts have the fault, and the key of a second tenant."""
    program = (sys.executable, "-m", "benchmarks.leaky", fault)
    config = CONFIG.format(id=MODEL_ID, folder=model_dir)
    with running(folder, config, program=program) as stack:
        stack.cli("tenants", "create", "other")
        other = stack.cli("keys", "create", "other").strip()
        headers = {"authorization": f"Bearer {other}"}
        models = partial(httpx.get, f"{stack.url}/v1/models", headers=headers)
        wait_for(lambda: models().status_code == 200)
        yield stack, other


def ask(stack: Stack, key: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    body = {"model": MODEL_ID, "prompt": PROMPT, "max_tokens": 4, "temperature": 0}
    return httpx.post(f"{stack.url}/v1/completions", headers=headers, json=body, timeout=60)


def hits(stack: Stack, key: str) -> int:
    """Tokens of the prompt that the engine counts as found in its cache."""
    before = stack.host_stats()["cached_tokens"]
    answer = ask(stack, key)
    assert answer.status_code == 200, answer.text
    found: int = stack.host_stats()["cached_tokens"] - before
    return found


@pytest.mark.slow
def test_a_domain_lost_on_the_way_to_the_engine_is_counted(tmp_path: Path, model_dir: Path) -> None:
    """Page tags can't tell: to the engine all are one. So the count across tenants must."""
    with leaky(tmp_path, model_dir, SALT_DROPPED) as (stack, other):
        assert hits(stack, stack.key) == 0
        assert hits(stack, other) == reusable(len(PROMPT)) > 0
        assert stack.host_stats()["tag_mismatches"] == 0


@pytest.mark.slow
def test_a_domain_left_out_of_the_keys_is_caught_by_the_tags(
    tmp_path: Path, model_dir: Path
) -> None:
    """The index offers another's pages; the check refuses them; the answer owes them nothing."""
    with leaky(tmp_path, model_dir, DOMAIN_NOT_IN_KEY) as (stack, other):
        first = ask(stack, stack.key)
        second = ask(stack, other)
    log = stack.log.read_text()
    assert '"event":"kv_tag_mismatch"' in log
    assert '"kind":"domain"' in log
    assert first.status_code == 200
    if second.status_code == 200:  # computed anew
        body = second.json()
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert body["choices"][0]["text"] == first.json()["choices"][0]["text"]
    else:
        assert (second.status_code, second.json()["error"]["code"]) == (503, "kv_integrity_abort")
