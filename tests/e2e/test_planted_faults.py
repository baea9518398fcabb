"""`bulkhead fault inject` into the real engine under load, and how an operator sees the outcome."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from runtime.rundir import runtime_dir
from tests.e2e.asking import eventually
from tests.e2e.clients import DONE, Stream
from tests.e2e.ledger import records
from tests.e2e.test_operator import admin
from tests.stack import BULKHEAD, Stack, fake_config, running
from tests.terminal import Terminal

pytestmark = pytest.mark.slow

STREAMED = {"stream": True}
MODEL = "smollm2-135m-instruct"
PROMPTS = ["The planets are", "The months are", "Ten colours are", "In the beginning there"]
LONG = "A history of the sea, in which every ship and every harbour has its place. " * 4
CONFIG = """
[hosts]
health_every_s = 0.5

[[models]]
id = "{model}"
engine = "embedded"
min_hosts = 1
path = "{path}"
options = {{ dtype = "float32", kv_memory_bytes = 67108864 }}
price = {{ input = "0.10", cached_input = "0.02", output = "0.30" }}
"""


@pytest.fixture
def stack(tmp_path: Path, model_dir: Path) -> Iterator[Stack]:
    with running(tmp_path, CONFIG.format(model=MODEL, path=model_dir)) as stack:
        yield stack
        assert "Traceback" not in stack.log.read_text()


def body(prompt: str, max_tokens: int) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}


def ask(stack: Stack, prompt: str, key: str = "") -> httpx.Response:
    with stack.client() as client:
        headers = {"authorization": f"Bearer {key or stack.key}"}
        return client.post("/v1/completions", json=body(prompt, 4), headers=headers)


def value(stack: Stack, series: str) -> float:
    """Of the one series that begins so, over all hosts."""
    with admin(stack) as http:
        lines = http.get("/admin/v1/metrics").text.splitlines()
    name, _, labels = series.partition("{")
    found = [line for line in lines if line.startswith(f"{name}{{") and labels.rstrip("}") in line]
    return sum(float(line.rpartition(" ")[2]) for line in found)


def mismatches(stack: Stack) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in stack.log.read_text().splitlines() if line[:1] == "{"]
    return [line for line in lines if line["event"] == "kv_tag_mismatch"]


def test_a_freed_page_stops_one_of_four_streams(stack: Stack) -> None:
    """That one ends in an error, unbilled; the others to their end; and an operator sees it."""
    refused = stack.cli("fault", "inject", "free-held-page", ok=False)
    assert "a request must be answering, and none is; have streams run" in refused
    assert "no-such" in stack.cli("fault", "inject", "no-such", ok=False)
    assert "free-held-page" in stack.cli("fault", "list")
    streams = [Stream(stack, body(prompt, 250) | STREAMED) for prompt in PROMPTS]
    injected = stack.cli("fault", "inject", "free-held-page")
    assert "was freed" in injected
    assert "Noticed by the check" in injected
    assert "; 1 request stopped." in injected
    terminal = Terminal(*BULKHEAD, "kv", "map", MODEL, *stack._places)
    try:
        terminal.wait_for("█")
        terminal.wait_for("■")
        os.write(terminal.controller, b"\x03")
        assert terminal.process.wait(60) == 0
    finally:
        terminal.close()
    ends = [stream.end() for stream in streams]
    (victim,) = [end for end in ends if DONE not in end]
    assert b'"code":"kv_integrity_abort"' in victim.splitlines()[-2]
    assert not any(word in victim for word in (b"tenant", b"domain", b" page "))
    assert sum(end.endswith(DONE) for end in ends) == 3
    rows = {row["request_id"]: row for row in records(stack)}
    told = {
        (end is victim, *billed(rows[s.request_id])) for s, end in zip(streams, ends, strict=True)
    }
    assert told == {(True, "integrity_abort", 0), (False, "", 1)}
    assert value(stack, 'kv_integrity_aborts_total{streamed="true"}') == 1
    assert value(stack, "kv_quarantine_pages") > 0
    assert value(stack, "kv_tag_mismatch_total") >= 1
    assert value(stack, "kv_tag_pages_checked_total") > 100
    drawn = stack.cli("kv", "map", "--once")
    assert "!" in drawn.splitlines()[1] + drawn.splitlines()[2]
    eventually(lambda: "1 request stopped" in stack.cli("hosts", "list"), "it isn't listed")
    (mismatch,) = {(line["model"], line["kind"]) for line in mismatches(stack)}
    assert mismatch == (MODEL, "stale")
    assert all(prompt not in stack.log.read_text() for prompt in PROMPTS)


def billed(row: dict[str, Any]) -> tuple[str, int]:
    ended = row["outcome"] in ("length", "completed")
    return "" if ended else row["outcome"], row["billable"]


def test_a_page_of_another_tenant_has_the_host_replaced(stack: Stack) -> None:
    """Who would have read it is answered all the same, from its own prompt, and billed once."""
    stack.cli("tenants", "create", "other")
    other = stack.cli("keys", "create", "other").strip()
    right = ask(stack, LONG).json()["choices"]
    first = stack.host_pid()
    stack.cli("fault", "inject", "drop-domain-from-key")
    assert ask(stack, LONG).status_code == 200
    answer = ask(stack, LONG, other)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"] == right
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    again = ask(stack, LONG, other)
    assert (again.status_code, again.json()["choices"]) == (200, right)
    eventually(lambda: first not in stack.children("runtime.host"), "it isn't replaced")
    alert = 'kv_tag_mismatch_total{phase="before",kind="domain"}'
    assert value(stack, alert) > 0, "an alert may look after the host is gone"
    (line,) = mismatches(stack)
    assert (line["model"], line["kind"], line["phase"]) == (MODEL, "domain", "before")
    assert line["host"].startswith("host-")
    listed = stack.cli("hosts", "list")
    assert "a host was replaced" in listed
    assert "a request was about to read a page of another domain" in listed
    assert "model_failed" not in stack.log.read_text()
    rows = records(stack)
    assert [billed(row) for row in rows] == [("", 1)] * 4


def test_a_server_of_production_refuses(tmp_path: Path) -> None:
    """With the reason, and not as if the key were wrong; its host refuses, too."""
    with running(tmp_path, fake_config(), "serve") as stack:
        for command in (("inject", "flip-bit"), ("list",)):
            told = stack.cli("fault", *command, ok=False)
            assert "faults are planted by `bulkhead dev` alone" in told
        (socket,) = runtime_dir(stack.state).glob("[0-9a-f]*-*.sock")
        transport = httpx.HTTPTransport(uds=str(socket))
        with httpx.Client(transport=transport, base_url="http://host") as http:
            answer = http.post("/faults/flip-bit")
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_development")
