"""Reloads under load: no request fails, good changes count at once, bad ones change nothing."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.clients import BODY, Load
from tests.e2e.ledger import records
from tests.e2e.reloads import CLIENTS, Wanted, current, deploy, run, serving, until
from tests.stack import SOAK, Stack

pytestmark = pytest.mark.slow

RELOADS = 50 if SOAK else 10


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with serving(tmp_path) as stack:
        yield stack


BAD = {
    "[[models": (3, "not valid TOML"),
    '[relay]\nidle_s = "soon"\n': (3, "relay.idle_s"),
    '[[models]]\nid = "m"\nengine = "magic"\n': (3, "].engine: expected one of"),
    '[[models]]\nid = "m"\nengine = "openai"\ncache = "salted"\nurl = "http://a.test/v1"\n'
    'api_key_secret = "NOT_THERE"\n': (3, "NOT_THERE"),
    "[server]\nport = 9\n": (1, "server.port"),
}  # fmt: skip


def one_good(rng: random.Random, wanted: Wanted, i: int) -> Wanted:
    """Another config: one thing in it differs, or several."""
    changes: dict[str, Any] = {
        "output_price": f"0.{rng.randrange(100000, 999999)}",
        "context": 100 if wanted.context > 101 else 4096,
        "body_bytes": rng.randrange(2_000, 100_000),
        "extra": "" if wanted.extra else f"extra-{i}",
    }
    names = rng.sample(sorted(changes), rng.choice((1, 1, 2, 4)))
    return replace(wanted, **{name: changes[name] for name in names})


def test_reloads_under_load(stack: Stack) -> None:
    """Good and bad in random order, with requests running all the time."""
    rng = random.Random(3)
    kinds = ["good", "bad"] * (RELOADS // 2)
    rng.shuffle(kinds)
    bad = list(BAD.items())
    wanted, number = Wanted(), 1
    with Load(stack, CLIENTS) as load, stack.client() as client:
        wanted.is_seen(stack, client)
        for i, kind in enumerate(kinds):
            if kind == "good":
                wanted, number = one_good(rng, wanted, i), number + 1
                told = deploy(stack, wanted.text())
                assert told["number"] == number
                assert {p["role"] for p in told["running"]} == {"node", "gateway"}
            else:
                more, (code, fault) = bad[i % len(bad)]
                stack.config.write_text(wanted.text(more))
                done = run(stack, "deploy")
                assert (done.returncode, fault in done.stderr) == (code, True), done.stderr
                assert current(stack) == number
            wanted.is_seen(stack, client)
            assert load.failed == [], f"at reload {i}, {kind}"
    assert load.failed == []
    assert len(load.ended) > 10 * RELOADS, "there was load"
    open_rows = [row for row in records(stack) if row["state"] == "open"]
    assert open_rows == []


def test_a_stream_that_runs_isn_t_touched_by_a_reload(stack: Stack) -> None:
    """Its price and its host are what they were; who comes after it has the new ones."""
    with stack.client() as client, stack.client() as other:
        body = BODY | {"max_tokens": 2000, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            chunks = answer.iter_text()
            text = next(chunks)
            wanted = Wanted(output_price="0.5", context=100)
            deploy(stack, wanted.text())
            wanted.is_seen(stack, other)
            text += "".join(chunks)
        assert text.endswith("data: [DONE]\n\n")
        rows = {row["request_id"]: row for row in records(stack)}
        row = rows[answer.headers["x-request-id"]]
        assert (row["output_tokens"], row["output_price_pico"]) == (2000, 300_000)


def test_a_removed_model_ends_what_runs_and_takes_no_more(stack: Stack) -> None:
    deploy(stack, Wanted(extra="extra").text())
    with stack.client() as client, stack.client() as other:
        body = BODY | {"model": "extra", "max_tokens": 1500, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            chunks = answer.iter_text()
            text = next(chunks)
            deploy(stack, Wanted().text())
            gone = other.post("/v1/completions", json=BODY | {"model": "extra"})
            assert (gone.status_code, gone.json()["error"]["code"]) == (404, "model_not_found")
            text += "".join(chunks)
        assert text.endswith("data: [DONE]\n\n")


def test_a_request_that_waits_for_a_host_of_a_removed_model_is_answered(stack: Stack) -> None:
    """And then there is no such host any more."""
    slow = '[[models]]\nid = "slow"\nengine = "fake"\noptions = { start_s = 3 }\n'
    deploy(stack, Wanted().text(slow))
    answers: list[httpx.Response] = []
    with stack.client() as client:
        body = BODY | {"model": "slow"}
        asking = threading.Thread(
            target=lambda: answers.append(client.post("/v1/completions", json=body))
        )
        asking.start()
        until(lambda: len(stack.children("runtime.host")) == 2, "its host starts")
        deploy(stack, Wanted().text())
        asking.join()
    assert answers[0].status_code == 200, answers[0].text
    until(lambda: len(stack.children("runtime.host")) == 1, "its host is gone")
