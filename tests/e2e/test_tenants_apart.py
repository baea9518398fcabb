"""Tenants share the engine and nothing else: what one cached is never another's, on any route.

Both halves matter: "no hit" alone also holds where nothing is cached at all. What counts is the
engine's own counter; that the answer's `usage` says the same is checked beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import httpx
import pytest
from tokenizers import Tokenizer

from gateway import v1
from tests.conftest import MODEL_ID, MODELS
from tests.e2e.ledger import row_of
from tests.e2e.prefix import PAGE, reusable
from tests.stack import Stack
from tests.waiting import wait_for

Body = dict[str, Any]

TEXT = "The quick brown fox jumps over the lazy dog, and then it does so again. " * 8


class Way(NamedTuple):
    """A route, and a form in which it takes a prompt."""

    path: str
    form: str
    stream: bool

    def body(self) -> Body:
        """A request whose very first words no other way's has."""
        text = f"{self.path} {self.form} {self.stream}: {TEXT}"
        more = {"stream": True, "stream_options": {"include_usage": True}} if self.stream else {}
        return FORMS[self.path][self.form](text) | {"model": MODEL_ID, "max_tokens": 1} | more


def messages(text: str, *, parts: bool) -> Body:
    """The text as the system's word, where it stands before all that chats have in common."""
    content = [{"type": "text", "text": text}] if parts else text
    return {"messages": [{"role": "system", "content": content}, {"role": "user", "content": "?"}]}


def token_ids(text: str) -> list[int]:
    """The model's own ids of a text."""
    tokenizer = Tokenizer.from_file(str(MODELS / MODEL_ID / "tokenizer.json"))
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


FORMS: dict[str, dict[str, Callable[[str], Body]]] = {
    "/v1/chat/completions": {
        "text": partial(messages, parts=False),
        "parts": partial(messages, parts=True),
    },
    "/v1/completions": {
        "text": lambda text: {"prompt": text},
        "text in a list": lambda text: {"prompt": [text]},
        "ids": lambda text: {"prompt": token_ids(text)},
        "ids in a list": lambda text: {"prompt": [token_ids(text)]},
    },
}
WAYS = [Way(path, form, s) for path in FORMS for form in FORMS[path] for s in (False, True)]


class Tenants(NamedTuple):
    """Keys of two tenants; one has two."""

    a: str
    a_again: str
    b: str


@pytest.fixture(scope="module")
def tenants(real_stack: Stack) -> Tenants:
    for name in ("hits-a", "hits-b"):
        real_stack.cli("tenants", "create", name)
    names = ("hits-a", "hits-a", "hits-b")
    keys = Tenants(*(real_stack.cli("keys", "create", name).strip() for name in names))
    for key in keys:
        wait_for(partial(is_known, real_stack, key))
    return keys


def is_known(stack: Stack, key: str) -> bool:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.get(f"{stack.url}/v1/models", headers=headers).status_code == 200


def usage(stack: Stack, key: str, path: str, body: Body) -> dict[str, Any]:
    """Send a request to its end; the usage that it tells."""
    headers = {"authorization": f"Bearer {key}"}
    answer = httpx.post(f"{stack.url}{path}", headers=headers, json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    told = answer.text
    if body.get("stream"):
        events = [line for line in told.splitlines() if line.startswith("data: ")]
        assert events[-1] == "data: [DONE]", told
        told = events[-2].removeprefix("data: ")
    found: dict[str, Any] = json.loads(told)["usage"]
    return found


def hits(stack: Stack, key: str, path: str, body: Body) -> tuple[int, int]:
    """(prompt tokens, of them found in the cache by the engine's own counter) of one request."""
    before = stack.host_stats()["cached_tokens"]
    told = usage(stack, key, path, body)
    found = stack.host_stats()["cached_tokens"] - before
    assert told["prompt_tokens_details"]["cached_tokens"] == found
    return told["prompt_tokens"], found


def test_every_route_that_reaches_an_engine_is_tried_below() -> None:
    """A route that only reads can't: it takes no prompt. A new one that does fails here first."""
    others = {"/v1/tokens"}  # it mints
    asked = {path for path, (method, _) in v1.ROUTES.items() if method != "GET"}
    assert asked - others == set(FORMS)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way.path} {way.form} {way.stream}")
def test_a_prefix_is_found_again_by_its_own_tenant_alone(
    real_stack: Stack, tenants: Tenants, way: Way
) -> None:
    """A, B, B, A, A by another key: nothing, nothing, then each its own in whole pages."""

    asked = partial(hits, real_stack, path=way.path, body=way.body())
    prompt, cold = asked(tenants.a)
    assert prompt % PAGE, "a whole number of pages is another case"
    assert cold == 0
    own = reusable(prompt)
    assert own > 0
    assert asked(tenants.b) == (prompt, 0), "what A cached isn't B's"
    assert asked(tenants.b) == (prompt, own)
    assert asked(tenants.a) == (prompt, own)
    assert asked(tenants.a_again) == (prompt, own), "the tenant counts, not the key"


@pytest.mark.slow
def test_a_prompt_of_whole_pages_is_found_but_for_its_last_token(
    real_stack: Stack, tenants: Tenants
) -> None:
    """Its last page is copied rather than shared: that copy too is the tenant's own."""
    ids = [20_000 + number for number in range(5 * PAGE)]
    asked = partial(
        hits,
        real_stack,
        path="/v1/completions",
        body={"model": MODEL_ID, "max_tokens": 1, "prompt": ids},
    )
    keys = (tenants.a, tenants.b, tenants.b, tenants.a, tenants.a_again)
    own = reusable(len(ids))
    assert own == len(ids) - 1
    assert [asked(key)[1] for key in keys] == [0, 0, own, own, own]


@pytest.mark.slow
def test_the_same_tokens_are_apart_however_they_came(real_stack: Stack, tenants: Tenants) -> None:
    """What A sent as text B doesn't find by its ids, and A does."""
    text = f"as text first, and then as ids: {TEXT}"
    ids = token_ids(text)
    assert len(ids) % PAGE

    def found(key: str, prompt: str | list[int]) -> int:
        body = {"model": MODEL_ID, "max_tokens": 1, "prompt": prompt}
        return hits(real_stack, key, "/v1/completions", body)[1]

    assert [found(tenants.a, text), found(tenants.b, ids)] == [0, 0]
    assert found(tenants.a, ids) == reusable(len(ids))


@pytest.mark.slow
def test_cached_tokens_cost_their_own_price(real_stack: Stack) -> None:
    """The amount of a row is each class of tokens at its own price, exactly."""
    with real_stack.client() as client:
        body = {"model": MODEL_ID, "prompt": "pay " * 70, "max_tokens": 2}
        for _ in range(2):
            answer = client.post("/v1/completions", json=body)
    row = row_of(real_stack, answer.headers["x-request-id"])
    assert row["input_tokens"] % PAGE, "a whole number of pages is another case"
    cached, fresh = row["cached_input_tokens"], row["input_tokens"] - row["cached_input_tokens"]
    assert cached == reusable(row["input_tokens"]) > 0
    micro = fresh * 100_000 + cached * 20_000 + row["output_tokens"] * 300_000
    assert row["amount"] == f"{micro / 10**12:.12f}".rstrip("0")
