"""What tests of deployments share: a config whose effect is seen outside, load, commands."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.ledger import records
from tests.stack import BULKHEAD, REPO, Stack, running

CLIENTS = 4
BODY = {"model": "echo", "prompt": "abcdefgh", "max_tokens": 12}


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


class Load:
    """Clients in a loop, half of them streaming. Every request must end well."""

    def __init__(self, stack: Stack) -> None:
        self.ended = 0
        self.failed: list[str] = []
        self._stack = stack
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._loop, args=(i % 2 == 0,)) for i in range(CLIENTS)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _loop(self, stream: bool) -> None:
        with self._stack.client() as client:
            while not self._stop.is_set():
                try:
                    answer = client.post("/v1/completions", json=BODY | {"stream": stream})
                except httpx.HTTPError as fault:
                    self.failed.append(repr(fault))
                    continue
                end = "data: [DONE]\n\n" if stream else "}"
                if answer.status_code == 200 and answer.text.endswith(end):
                    self.ended += 1
                else:
                    self.failed.append(f"{answer.status_code} {answer.text[-300:]}")


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
