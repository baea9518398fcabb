"""`bulkhead tail` of a real Bulkhead."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from runtime.rundir import events_socket
from tests.e2e.asking import PATIENCE_S, complete, eventually
from tests.stack import BULKHEAD, REPO, Stack


@contextmanager
def tailing(stack: Stack, *options: str) -> Iterator[Callable[[], dict[str, Any]]]:
    """`bulkhead tail`, listening; the function waits for its next line. It must end well."""
    places = ["--config", str(stack.config), "--state", str(stack.state)]
    with subprocess.Popen(
        [*BULKHEAD, "tail", *options, *places], stdout=subprocess.PIPE, text=True, cwd=REPO
    ) as process:
        assert process.stdout is not None
        lines = process.stdout
        try:
            eventually(lambda: events_socket(stack.state).exists(), "nobody listens")
            yield lambda: json.loads(lines.readline())
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


def test_tail_tells_of_each_request_as_it_ends(fake_stack: Stack) -> None:
    """In a pipe as JSON; who and how much, never what; and Ctrl-C is its good end."""
    with tailing(fake_stack) as next_event:
        answers = [complete(fake_stack), complete(fake_stack, model="none")]
        events = [next_event(), next_event()]
    assert [e["request_id"] for e in events] == [a.headers["x-request-id"] for a in answers]
    went_well, refused = events
    assert (went_well["result"], went_well["status"], went_well["output_tokens"]) == ("ok", 200, 3)
    assert (went_well["model"], went_well["tenant_name"]) == ("echo", "demo")
    assert (refused["result"], refused["code"]) == ("error", "model_not_found")
    assert "canary-4711" not in json.dumps(events)
    assert fake_stack.key not in json.dumps(events)
    eventually(lambda: not events_socket(fake_stack.state).exists(), "somebody listens still")


def test_tail_shows_what_was_asked_for_and_a_stream_that_was_left(fake_stack: Stack) -> None:
    with tailing(fake_stack, "--status", "canceled", "--model", "echo") as next_event:
        complete(fake_stack)
        body = {"model": "echo", "prompt": "abc", "max_tokens": 4000, "stream": True}
        with (
            fake_stack.client() as client,
            client.stream("POST", "/v1/completions", json=body) as answer,
        ):
            next(answer.iter_raw())
            left = answer.headers["x-request-id"]
        event = next_event()
    assert (event["request_id"], event["result"], event["status"]) == (left, "canceled", 499)
    assert event["ttft_ms"] > 0


def test_a_thousand_requests_are_told_without_a_loss(fake_stack: Stack) -> None:
    """As many at once as the kernel's queue never holds."""
    with tailing(fake_stack) as next_event, fake_stack.client() as client:
        for _ in range(300):
            assert client.get("/v1/models").status_code == 200
        events = [next_event() for _ in range(300)]
    assert not any(event.get("dropped") for event in events)
    assert len({event["request_id"] for event in events}) == 300
