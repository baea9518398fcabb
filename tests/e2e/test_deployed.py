"""What was deployed counts, whatever the file says by now: for whoever starts, or comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.clients import BODY
from tests.e2e.reloads import Wanted, answers, current, deploy, run, serving, until
from tests.e2e.test_kill import wait_until_gone
from tests.stack import SOAK, Stack, free_port

pytestmark = pytest.mark.slow


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with serving(tmp_path) as stack:
        yield stack


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


@pytest.mark.parametrize(
    ("name", "damaged"),
    [("current", b""), ("current", b'{"number":0,"change":9}'), ("0001.json", b"")],
    ids=["no pointer", "a pointer to nothing", "no record"],
)
def test_a_worker_killed_while_the_deployment_is_damaged_comes_back_with_what_ran(
    stack: Stack, name: str, damaged: bytes
) -> None:
    (stack.state / "deployments" / name).write_bytes(damaged)
    old = stack.worker_pid()
    stack.kill(old)
    wait_until_gone(old)
    stack.wait_ready()
    with stack.client() as client:
        until(lambda: answers(client), "it answers")
        wanted = Wanted(output_price="0.7")
        deploy(stack, wanted.text())
        wanted.is_seen(stack, client)
    assert "Traceback" not in stack.log.read_text()


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
