"""Clients that stop reading an attached server's long answers: memory stays, others are served."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import httpx

from tests.e2e.test_slow_reader import resident_kb
from tests.runtime.upstream import Exchange, upstream
from tests.stack import running

READERS = 20
KB_EACH = 512
SLACK_KB = 6 * 1024  # what twenty requests leave behind however small they are
MIB = 1024 * 1024
ANSWER_MIB = 40
CONFIG = """
[[models]]
id = "theirs"
engine = "openai"
kind = "vllm"
url = "{url}/v1"
"""


def chunk(text: str, finish: str | None = None) -> dict[str, object]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}


class Torrent:
    """Answers long prompts with 40 MiB as fast as they are taken, short ones with a word."""

    def __init__(self) -> None:
        self.written = 0

    async def __call__(self, exchange: Exchange) -> None:
        if exchange.json()["prompt"] == "short":
            await exchange.events(chunk("ho", "stop"), b"data: [DONE]\n\n")
            return
        await exchange.events(end=False)
        for _ in range(ANSWER_MIB * 4096):
            await exchange.event(chunk("x" * (MIB // 4096)))
            self.written += MIB // 4096


def stuck(port: int, key: str) -> socket.socket:
    """A client that reads its headers and a bit, and then nothing more."""
    body = json.dumps({"model": "theirs", "prompt": "long", "stream": True}).encode()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    sock.connect(("127.0.0.1", port))
    sock.sendall(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        + f"authorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        + body
    )
    return sock


async def test_a_reader_that_is_stuck_costs_a_little_memory_and_no_time_of_others(
    tmp_path: Path,
) -> None:
    """TensorZero grew by 239 MB for one of them; half a MiB at most here."""
    torrent = Torrent()
    async with upstream(torrent) as server:
        with running(tmp_path, CONFIG.format(url=server.url)) as stack:
            headers = {"authorization": f"Bearer {stack.key}"}
            body = {"model": "theirs", "prompt": "short", "stream": True}
            async with httpx.AsyncClient(headers=headers, timeout=60) as http:
                url = f"{stack.url}/v1/completions"
                for _ in range(20):  # what the first requests bring with them
                    assert "[DONE]" in (await http.post(url, json=body)).text
                pid = stack.worker_pid()
                before = resident_kb(pid)
                socks = [
                    await asyncio.to_thread(stuck, stack.port, stack.key) for _ in range(READERS)
                ]
                for sock in socks:
                    await asyncio.to_thread(sock.recv, 1024)
                await still(torrent)
                assert torrent.written < READERS * ANSWER_MIB * MIB / 2, "the server is held back"
                for _ in range(20):
                    assert "[DONE]" in (await http.post(url, json=body)).text
                grown = resident_kb(pid) - before
                assert grown < READERS * KB_EACH + SLACK_KB, f"{grown} KB for {READERS} readers"
                for sock in socks:
                    sock.close()


async def still(torrent: Torrent) -> None:
    """Returns once nothing more is taken from the server."""
    seen = -1
    async with asyncio.timeout(60):
        while seen != torrent.written:
            seen = torrent.written
            await asyncio.sleep(0.5)
