"""A client that leaves ends the engine's work: queued, before the first byte, and streaming."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.ledger import exported
from tests.stack import Stack, fake_config, running


@pytest.fixture(scope="module")
def slow_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """An engine that takes 50 ms a token, for one request at a time."""
    folder = tmp_path_factory.mktemp("slow")
    with running(folder, fake_config(step_s=0.05, max_running=1)) as stack:
        yield stack


def send(stack: Stack, *, stream: bool, prompt: str = "abcdefgh") -> socket.socket:
    """A request on a raw socket, so that leaving is a plain close."""
    body = {"model": "echo", "prompt": prompt, "max_tokens": 200, "stream": stream}
    data = json.dumps(body).encode()
    sock = socket.create_connection(("127.0.0.1", stack.port))
    sock.sendall(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        + f"authorization: Bearer {stack.key}\r\ncontent-length: {len(data)}\r\n\r\n".encode()
        + data
    )
    return sock


def wait_for(condition: object, timeout_s: float = 5) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it didn't happen in time"
        time.sleep(0.02)


def idle(stack: Stack) -> bool:
    return int(stack.host_stats()["running"]) == 0


def read_until(sock: socket.socket, mark: bytes, count: int) -> bytes:
    data = b""
    while data.count(mark) < count:
        part = sock.recv(65536)
        assert part, data
        data += part
    return data


@pytest.mark.parametrize("stream", [True, False])
def test_while_queued(slow_stack: Stack, stream: bool) -> None:
    """The request behind another is taken out of the queue; the one in front goes on."""
    wait_for(lambda: idle(slow_stack))
    first = send(slow_stack, stream=True)
    read_until(first, b"data: ", 2)
    second = send(slow_stack, stream=stream)
    wait_for(lambda: slow_stack.host_stats()["running"] == 2)
    aborted = slow_stack.host_stats()["aborted"]
    second.close()
    wait_for(lambda: slow_stack.host_stats()["aborted"] == aborted + 1, 1)
    assert slow_stack.host_stats()["running"] == 1
    first.close()
    wait_for(lambda: idle(slow_stack), 1)


@pytest.mark.parametrize("stream", [True, False])
def test_before_the_first_byte(slow_stack: Stack, stream: bool) -> None:
    """Leaving while the engine works on the first token, or on a whole unstreamed answer."""
    wait_for(lambda: idle(slow_stack))
    sock = send(slow_stack, stream=stream)
    wait_for(lambda: slow_stack.host_stats()["running"] == 1)
    sock.close()
    wait_for(lambda: idle(slow_stack), 1)


def test_while_streaming_bills_what_was_delivered(slow_stack: Stack) -> None:
    """The engine stops within a second; the row has the tokens that the client was sent."""
    wait_for(lambda: idle(slow_stack))
    sock = send(slow_stack, stream=True, prompt="abcdefgh")
    data = read_until(sock, b"data: ", 6)
    sock.close()
    wait_for(lambda: idle(slow_stack), 1)
    request_id = data.split(b"x-request-id: ")[1].split(b"\r\n")[0].decode()
    wait_for(lambda: any(row["request_id"] == request_id for row in exported(slow_stack)))
    row = next(row for row in exported(slow_stack) if row["request_id"] == request_id)
    assert row["outcome"] == "client_cancelled"
    assert row["usage_source"] == "upstream_running"
    assert row["billable"] is True
    assert row["input_tokens"] == 8
    assert 5 <= row["output_tokens"] <= 9, "six were read; a few more may have been on their way"


def test_nothing_delivered_is_nothing_billed(slow_stack: Stack) -> None:
    """An unstreamed request that is left costs nothing: the client got no token."""
    wait_for(lambda: idle(slow_stack))
    before = len(exported(slow_stack))
    sock = send(slow_stack, stream=False)
    wait_for(lambda: slow_stack.host_stats()["running"] == 1)
    time.sleep(0.2)
    sock.close()
    wait_for(lambda: len(exported(slow_stack)) > before)
    row = exported(slow_stack)[-1]
    assert row["outcome"] == "client_cancelled"
    assert row["billable"] is False
    assert row["bill_reason"] == "nothing_delivered"


def test_a_reset_storm_leaves_an_exact_ledger(slow_stack: Stack, tmp_path: Path) -> None:
    """Fifty clients that reset their connections: one row each, the engine idle, no row open."""
    import struct

    wait_for(lambda: idle(slow_stack))
    before = len(exported(slow_stack))
    socks = [send(slow_stack, stream=True) for _ in range(50)]
    wait_for(lambda: slow_stack.host_stats()["running"] == 50)
    for sock in socks:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    wait_for(lambda: idle(slow_stack), 2)
    wait_for(lambda: len(exported(slow_stack)) == before + 50)
