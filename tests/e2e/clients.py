"""Clients in threads: many that ask in a loop, and one that reads an answer as it comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import httpx

from tests.stack import Stack
from tests.waiting import wait_for

BODY = {"model": "echo", "prompt": "abcdefgh", "max_tokens": 12}
LONG = BODY | {"max_tokens": 6000, "stream": True}
DONE = b"data: [DONE]\n\n"
BREATH_S = 0.02  # after a failure: a gateway that is gone refuses at once


class Failure(NamedTuple):
    """An answer without its end: why, and what came of it."""

    reason: str
    data: bytes


class Load:
    """Clients that ask in a loop: the requests whose answer ended well, and the others.

    The n-th of them streams if the n-th of `streams` says so, and connects anew for each request
    if that of `anew` does; both begin again at their end.
    """

    def __init__(
        self,
        stack: Stack,
        clients: int,
        *,
        streams: Sequence[bool] = (True, False),
        anew: Sequence[bool] = (False,),
    ) -> None:
        self.ended: list[str] = []
        self.failed: list[Failure] = []
        self._stack = stack
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._loop, args=(streams[i % len(streams)], anew[i % len(anew)])
            )
            for i in range(clients)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_for_more(self, count: int) -> None:
        """Returns once so many more have ended: it goes on."""
        before = len(self.ended)
        wait_for(lambda: len(self.ended) >= before + count)

    def _loop(self, stream: bool, anew: bool) -> None:
        while not self._stop.is_set():
            with self._stack.client() as client:
                self._ask(client, stream)
                while not anew and not self._stop.is_set():
                    self._ask(client, stream)

    def _ask(self, client: httpx.Client, stream: bool) -> None:
        data, reason = b"", ""
        try:
            with client.stream("POST", "/v1/completions", json=BODY | {"stream": stream}) as answer:
                for chunk in answer.iter_raw():
                    data += chunk
        except httpx.HTTPError as fault:
            reason = repr(fault)
        else:
            if answer.status_code == 200 and data.endswith(DONE if stream else b"}"):
                self.ended.append(answer.headers["x-request-id"])
                return
            reason = f"status {answer.status_code}"
        self.failed.append(Failure(reason, data))
        time.sleep(BREATH_S)


class Stream:
    """An answer that is read as it comes. Made once it has begun, or failed."""

    def __init__(self, stack: Stack, body: dict[str, Any] = LONG) -> None:
        self.data = b""
        self.error: Exception | None = None
        self.request_id = ""
        self._thread = threading.Thread(target=self._read, args=(stack, body))
        self._thread.start()
        wait_for(lambda: self.data or self.error)

    def _read(self, stack: Stack, body: dict[str, Any]) -> None:
        try:
            with (
                stack.client() as client,
                client.stream("POST", "/v1/completions", json=body) as answer,
            ):
                self.request_id = answer.headers["x-request-id"]
                for chunk in answer.iter_raw():
                    self.data += chunk
        except httpx.HTTPError as fault:
            self.error = fault

    def end(self) -> bytes:
        """All of it, once it has ended."""
        self._thread.join(120)
        assert not self._thread.is_alive()
        return self.data
