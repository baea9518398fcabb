"""What tests of deployments share: a config whose effect is seen outside, and commands."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.clients import BODY
from tests.e2e.ledger import records
from tests.stack import BULKHEAD, REPO, Stack, running

CLIENTS = 4


@dataclass(frozen=True)
class Wanted:
    """What the config says, of what a test can see from outside."""

    output_price: str = "0.30"
    context: int = 4096
    body_bytes: int = 100_000
    extra: str = ""  # one more model

    def text(self, more: str = "") -> str:
        extra = f'[[models]]\nid = "{self.extra}"\nengine = "fake"\n' if self.extra else ""
        return f"""
[admin]
port = 0
[limits]
max_body_bytes = {self.body_bytes}
[[models]]
id = "echo"
engine = "fake"
min_hosts = 1
options = {{ step_s = 0.002, max_context_tokens = {self.context} }}
price = {{ input = "0.10", output = "{self.output_price}" }}
{extra}{more}"""

    def is_seen(self, stack: Stack, client: httpx.Client) -> None:
        """The gateway's part is seen by the first request after `deploy` has returned."""
        answer = client.post("/v1/completions", json=BODY)
        assert answer.status_code == 200, answer.text
        (row,) = (r for r in records(stack) if r["request_id"] == answer.headers["x-request-id"])
        assert row["output_price_pico"] == round(float(self.output_price) * 1_000_000)
        models = {model["id"] for model in client.get("/v1/models").json()["data"]}
        assert models == {"echo", self.extra} - {""}
        if self.extra:
            answer = client.post("/v1/completions", json=BODY | {"model": self.extra})
            assert answer.status_code == 200, answer.text
        with stack.client() as other:  # what wasn't read ends the connection
            over = other.post("/v1/completions", content=b" " * (self.body_bytes + 1))
        assert over.status_code == 413
        until(lambda: self._context_is_seen(client), "the host has the new option")

    def _context_is_seen(self, client: httpx.Client) -> bool:
        """Hosts are replaced in the background: the old one answers until the new one is ready."""
        body = BODY | {"prompt": "x" * 100, "max_tokens": 1}
        return client.post("/v1/completions", json=body).status_code == (
            200 if self.context > 101 else 400
        )


def until(condition: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not true in time: {what}"
        time.sleep(0.05)


def run(stack: Stack, *args: str) -> subprocess.CompletedProcess[str]:
    places = ["--config", str(stack.config), "--state", str(stack.state)]
    command = [*BULKHEAD, *args, *places]
    return subprocess.run(command, capture_output=True, text=True, cwd=REPO, check=False)


def deploy(stack: Stack, text: str) -> dict[str, Any]:
    stack.config.write_text(text)
    done = run(stack, "deploy", "--json")
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def current(stack: Stack) -> int:
    listed = json.loads(run(stack, "deployments", "list", "--json").stdout)
    (number,) = (row["number"] for row in listed if row["current"])
    return int(number)


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/v1/models").status_code == 200
    except httpx.HTTPError:
        return False


@contextmanager
def serving(folder: Path) -> Iterator[Stack]:
    """`bulkhead serve` on the config as it is wanted at first, with a tenant and a key."""
    with running(folder, Wanted().text(), "serve") as stack:
        stack.cli("tenants", "create", "acme")
        stack.key = stack.cli("keys", "create", "acme").strip()
        with stack.client() as client:
            until(lambda: client.get("/v1/models").status_code == 200, "the key is known")
        yield stack
