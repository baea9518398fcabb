"""Reloads under load: no request fails, good changes count at once, bad ones change nothing."""

from __future__ import annotations

import json
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.ledger import records
from tests.e2e.test_kill import wait_until_gone
from tests.stack import BULKHEAD, REPO, SOAK, Stack, free_port, running

pytestmark = pytest.mark.slow

RELOADS = 50 if SOAK else 10
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


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with running(tmp_path, Wanted().text(), "serve") as stack:
        stack.cli("tenants", "create", "acme")
        stack.key = stack.cli("keys", "create", "acme").strip()
        with stack.client() as client:
            until(lambda: client.get("/v1/models").status_code == 200, "the key is known")
        yield stack


BAD = {
    "[[models": (3, "not valid TOML"),
    '[relay]\nidle_s = "soon"\n': (3, "relay.idle_s"),
    '[[models]]\nid = "m"\nengine = "magic"\n': (3, "].engine: expected one of"),
    '[[models]]\nid = "m"\nengine = "openai"\nurl = "http://a.test/v1"\n'
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
    with Load(stack) as load, stack.client() as client:
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
    assert load.ended > 10 * RELOADS, "there was load"
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


def test_a_worker_killed_while_the_file_is_bad_comes_back_with_what_was_deployed(
    stack: Stack,
) -> None:
    wanted = Wanted(output_price="0.7", extra="extra")
    deploy(stack, wanted.text())
    stack.config.write_text("[[models")
    for _ in range(3 if SOAK else 1):
        old = stack.worker_pid()
        stack.kill(old)
        wait_until_gone(old)
        stack.wait_ready()
        with stack.client() as client:
            until(lambda: answers(client), "it answers")
            wanted.is_seen(stack, client)


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/v1/models").status_code == 200
    except httpx.HTTPError:
        return False


def test_a_host_killed_while_the_file_is_bad_comes_back_with_what_was_deployed(
    stack: Stack,
) -> None:
    wanted = Wanted(context=100)
    deploy(stack, wanted.text())
    stack.config.write_text("[[models")
    with stack.client() as client:
        wanted.is_seen(stack, client)
        for pid in stack.children("runtime.host"):
            stack.kill(pid)
        until(lambda: client.post("/v1/completions", json=BODY).status_code == 200, "a new host")
        wanted.is_seen(stack, client)


def test_a_start_while_the_file_is_bad(stack: Stack) -> None:
    """Refused as ever; with --deployed it comes up as it was."""
    wanted = Wanted(output_price="0.9", context=100)
    deploy(stack, wanted.text())
    assert stack.stop() == 0
    stack.config.write_text("[[models")
    assert run(stack, "serve").returncode == 3
    stack.command = "serve"
    stack.spawn("--deployed")
    stack.wait_ready()
    with stack.client() as client:
        wanted.is_seen(stack, client)
    assert current(stack) == 2


def test_rollback_goes_back_a_step_at_a_time(stack: Stack) -> None:
    """Under load, and without looking at the file, which is bad."""
    prices = ["0.30", "0.31", "0.32"]
    for price in prices[1:]:
        deploy(stack, Wanted(output_price=price).text())
    stack.config.write_text("[[models")
    with Load(stack) as load, stack.client() as client:
        for args, price in (([], "0.31"), ([], "0.30"), (["3", "-m", "forth"], "0.32")):
            done = run(stack, "rollback", *args)
            assert done.returncode == 0, done.stderr
            assert "running on gateway and node" in done.stdout
            assert f"{stack.config} says something else by now" in done.stdout
            Wanted(output_price=price).is_seen(stack, client)
    assert load.failed == []
    listed = json.loads(run(stack, "deployments", "list", "--json").stdout)
    assert [(row["number"], row["restores"]) for row in listed[:3]] == [(6, 3), (5, 1), (4, 2)]
    assert listed[0]["message"] == "forth"
    assert listed[0]["current"]
    viewed = run(stack, "deployments", "view", "6")
    assert viewed.stdout == Wanted(output_price="0.32").text()
    assert "message: forth" in viewed.stderr
    lost = run(stack, "rollback", "99")
    assert (lost.returncode, "there is no deployment 99" in lost.stderr) == (1, True)


def test_a_dry_run_tells_what_would_change_and_changes_nothing(stack: Stack) -> None:
    stack.config.write_text(Wanted(output_price="0.5", extra="extra").text())
    done = run(stack, "deploy", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert '~ models.echo.price.output: "0.30" → "0.5"' in done.stdout
    assert "+ models.extra" in done.stdout
    assert "nothing was changed" in done.stdout
    assert current(stack) == 1
    with stack.client() as client:
        Wanted().is_seen(stack, client)


def test_a_secret_that_only_the_deployer_has_is_noticed(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check was good where it ran; the processes say no, and the one before is back."""
    monkeypatch.setenv("ONLY_HERE", "sk-1")
    stack.config.write_text(Wanted(output_price="0.5").text(
        '[[models]]\nid = "m"\nengine = "openai"\nurl = "http://a.test/v1"\n'
        'api_key_secret = "ONLY_HERE"\n'
    ))  # fmt: skip
    done = run(stack, "deploy")
    assert done.returncode == 1
    assert "deployment 2 was not applied" in done.stderr
    assert "doesn't have ONLY_HERE" in done.stderr
    assert "bulkhead secret put ONLY_HERE" in done.stderr
    assert "deployment 1 is back, as 3" in done.stderr
    with stack.client() as client:
        Wanted().is_seen(stack, client)


def test_dev_deploys_its_file_when_it_is_saved(tmp_path: Path) -> None:
    with running(tmp_path, Wanted().text()) as stack, stack.client() as client:
        Wanted().is_seen(stack, client)
        draft = stack.config.with_suffix(".new")
        draft.write_text(Wanted(extra="extra").text())
        draft.replace(stack.config)
        until(lambda: "+ models.extra" in stack.log.read_text(), "it is told")
        Wanted(extra="extra").is_seen(stack, client)
        stack.config.write_text(Wanted().text("[relay]\nidle_s = 0\n"))
        until(lambda: "relay.idle_s" in stack.log.read_text(), "so are faults")
        Wanted(extra="extra").is_seen(stack, client)
        stack.config.write_text(Wanted().text("[server]\nport = 9\n"))
        until(lambda: "server.port" in stack.log.read_text(), "and what needs a restart")
        stack.config.write_text(Wanted(output_price="0.6").text())
        until(lambda: "- models.extra" in stack.log.read_text(), "a good one again")
        Wanted(output_price="0.6").is_seen(stack, client)


def test_node_and_gateway_apart_follow_one_deployment(tmp_path: Path) -> None:
    """And a node that comes back while the file is bad has what was deployed."""
    config = tmp_path / "bulkhead.toml"
    config.write_text(Wanted().text())
    node = Stack(config, tmp_path / "state", 0, "node")
    gateway = Stack(config, tmp_path / "state", free_port(), "gateway")
    try:
        node.spawn()
        gateway.start()
        gateway.cli("tenants", "create", "acme")
        gateway.key = gateway.cli("keys", "create", "acme").strip()
        with gateway.client() as client:
            until(lambda: answers(client), "the key is known")
            wanted = Wanted(output_price="0.4", context=100, extra="extra")
            told = deploy(gateway, wanted.text())
            assert {p["role"] for p in told["running"]} == {"node", "gateway"}
            wanted.is_seen(gateway, client)
            config.write_text("[[models")
            assert node.process
            assert node.process.stdout
            node.process.kill()
            node.process.wait()
            node.process.stdout.close()
            node.spawn("--deployed")
            again = BODY | {"max_tokens": 1}
            until(lambda: client.post("/v1/completions", json=again).status_code == 200, "a host")
            wanted.is_seen(gateway, client)
        assert gateway.stop() == 0
        assert node.stop() == 0
    finally:
        for stack in (node, gateway):
            if stack.process and stack.process.poll() is None:
                stack.process.kill()
                stack.process.wait()
