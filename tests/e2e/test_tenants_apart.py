"""Tenants share the engine and nothing else: what one cached is never another's."""

from __future__ import annotations

import httpx
import pytest

from tests.e2e.ledger import row_of
from tests.stack import Stack

pytestmark = pytest.mark.slow

PROMPT = "The quick brown fox jumps over the lazy dog, and then it does so again. " * 8


def cached_tokens(stack: Stack, key: str) -> tuple[int, int]:
    """(prompt tokens, of them cached) of one request, as the client and the ledger see them."""
    answer = httpx.post(
        f"{stack.url}/v1/completions",
        headers={"authorization": f"Bearer {key}"},
        json={"model": "smollm2-135m-instruct", "prompt": PROMPT, "max_tokens": 1},
        timeout=60,
    )
    usage = answer.json()["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def test_a_prefix_is_shared_within_a_tenant_only(real_stack: Stack) -> None:
    """B's first request after A's finds nothing; each tenant finds its own, in whole pages."""
    keys = []
    for name in ("apart-a", "apart-b"):
        real_stack.cli("tenants", "create", name)
        keys.append(real_stack.cli("keys", "create", name).strip())
    wait_until_known(real_stack, keys)
    before = real_stack.host_stats()["cached_tokens"]
    prompt, cold = cached_tokens(real_stack, keys[0])
    assert cold == 0
    assert cached_tokens(real_stack, keys[1]) == (prompt, 0)
    assert real_stack.host_stats()["cached_tokens"] == before, "the engine's own counter agrees"
    whole_pages = (prompt - 1) // 16 * 16
    assert cached_tokens(real_stack, keys[0]) == (prompt, whole_pages)
    assert cached_tokens(real_stack, keys[1]) == (prompt, whole_pages)


def test_cached_tokens_cost_their_own_price(real_stack: Stack) -> None:
    """The amount of a row is each class of tokens at its own price, exactly."""
    with real_stack.client() as client:
        body = {"model": "smollm2-135m-instruct", "prompt": "pay " * 64, "max_tokens": 2}
        for _ in range(2):
            answer = client.post("/v1/completions", json=body)
    row = row_of(real_stack, answer.headers["x-request-id"])
    cached, fresh = row["cached_input_tokens"], row["input_tokens"] - row["cached_input_tokens"]
    assert cached == (row["input_tokens"] - 1) // 16 * 16 > 0
    micro = fresh * 100_000 + cached * 20_000 + row["output_tokens"] * 300_000
    assert row["amount"] == f"{micro / 10**12:.12f}".rstrip("0")


def wait_until_known(stack: Stack, keys: list[str]) -> None:
    """A key made by the command line works within a second, without a restart."""
    import time

    deadline = time.monotonic() + 1.5
    pending = list(keys)
    while pending and time.monotonic() < deadline:
        headers = {"authorization": f"Bearer {pending[0]}"}
        if httpx.get(f"{stack.url}/v1/models", headers=headers).status_code == 200:
            pending.pop(0)
        else:
            time.sleep(0.05)
    assert not pending
