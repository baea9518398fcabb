"""A stop while clients are in the middle of sending, or of taking in what they asked for."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.e2e.clients import DONE, LONG, Stream
from tests.e2e.ledger import records
from tests.stack import fake_config, running

CONFIG = "[server]\ndrain_s = 300\n" + fake_config(step_s=0.01)
HEAD = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ("POST /v1/completions HTTP/1.1\r\nhost: x\r\nauth", b""),
        (HEAD + 'content-length: 100\r\n\r\n{{"model"', b"server_stopping"),
        (HEAD + "transfer-encoding: chunked\r\n\r\n1\r\n{{\r\n", b"server_stopping"),
    ],
    ids=["half a head", "half a body", "half of the chunks"],
)
def test_half_a_request_does_not_hold_a_stop(tmp_path: Path, sent: str, told: bytes) -> None:
    """It ends long before the drain does, and an answer that runs beside it ends whole."""
    with running(tmp_path, CONFIG) as stack:
        stream = Stream(stack, LONG | {"max_tokens": 400})
        with socket.create_connection(("127.0.0.1", stack.port), timeout=60) as client:
            client.sendall(sent.format(key=stack.key).encode())
            assert stack.stop(timeout_s=150) == 0
            received = b"".join(iter(lambda: client.recv(65536), b""))
        assert stream.end().endswith(DONE)
        assert told in received
        assert bool(received) == bool(told)
        assert [row["outcome"] for row in records(stack)] == ["length"]
        assert "Traceback" not in stack.log.read_text()
