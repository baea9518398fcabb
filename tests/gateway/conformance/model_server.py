"""A small OpenAI-compatible server that does all as it must, or one thing wrong."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from typing import Any

from tests.runtime.upstream import Exchange

WORDS = ["one", "two", "grüße", "three", "日本語", "four", "🙂🎉", "five"]
CONTEXT = 4000  # tokens, of which a word is one
TOKEN_S = 0.002
PREFILL_S = 0.0002  # a token that isn't cached
WRONG = (
    "shares its cache", "tells no cached tokens", "runs on", "counts streams otherwise",
    "tells no usage", "answers with nothing", "splits characters", "ignores stops", "takes any",
    "claims too much", "cuts long prompts", "fails at fields", "ends without DONE",
    "has no metrics",
)  # fmt: skip


class ModelServer:
    """`wrong` is what it does wrong; "": nothing. It keeps caches apart by `cache_salt`."""

    def __init__(self, wrong: str = "") -> None:
        assert wrong in ("", *WRONG)
        self.wrong = wrong
        self._cached: dict[str, set[str]] = {}
        self._running = 0
        self._slots = asyncio.Semaphore(3)  # the others wait

    async def __call__(self, exchange: Exchange) -> None:
        if exchange.method == "GET":
            await self._page(exchange)
            return
        asked = exchange.json()
        if fault := self._fault(asked):
            await exchange.reply_json(fault[0], {"error": {"message": fault[1], "type": "e"}})
            return
        self._running += 1
        answering = asyncio.ensure_future(self._answer(exchange, asked))
        leaving = asyncio.ensure_future(exchange.gone())
        try:
            if self.wrong == "runs on":
                await answering
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            self._running -= 1
            for task in (answering, leaving):
                task.cancel()
            await asyncio.wait({answering, leaving})

    async def _page(self, exchange: Exchange) -> None:
        if exchange.path == "/v1/models":
            await exchange.reply_json(200, {"data": [{"id": "m"}]})
        elif exchange.path == "/metrics" and self.wrong != "has no metrics":
            text = f'vllm:num_requests_running{{model="m"}} {self._running}.0\n'
            await exchange.reply(200, text.encode(), "text/plain")
        else:
            await exchange.reply_json(404, {})

    def _fault(self, asked: dict[str, Any]) -> tuple[int, str] | None:
        messages = asked.get("messages")
        if not isinstance(messages, list):
            return (500 if self.wrong == "fails at fields" else 400), "messages: not a list"
        size = len(str(messages[0]["content"]).split())
        if size > CONTEXT and self.wrong != "cuts long prompts":
            return 400, f"This model's maximum context length is {CONTEXT} tokens"
        if asked["model"] != "m" and self.wrong != "takes any":
            return 404, "no such model"
        return None

    async def _answer(self, exchange: Exchange, asked: dict[str, Any]) -> None:
        async with self._slots:
            prompt, hits = await self._prefill(asked)
            words = list(itertools.islice(itertools.cycle(WORDS), asked["max_tokens"]))
            if self.wrong == "answers with nothing":
                words = []
            text = " ".join(words)
            finish, stop = "length", (asked.get("stop") or ["\0"])[0]
            if stop in text and self.wrong != "ignores stops":
                text, finish = text[: text.index(stop)], "stop"
            usage = self._usage(prompt, hits, len(words))
            if asked.get("stream"):
                await self._stream(exchange, text, finish, usage, len(words))
            else:
                await asyncio.sleep(TOKEN_S * len(words))
                choice = {"message": {"content": text}, "finish_reason": finish}
                await exchange.reply_json(200, {"choices": [choice], "usage": usage})

    async def _prefill(self, asked: dict[str, Any]) -> tuple[int, int]:
        """Prompt tokens, and how many of them were cached."""
        content = asked["messages"][0]["content"]
        salt = "" if self.wrong == "shares its cache" else asked.get("cache_salt", "")
        known, size = self._cached.setdefault(salt, set()), min(CONTEXT, len(content.split()))
        hits = size - 1 if content in known else 0
        known.add(content)
        await asyncio.sleep(PREFILL_S * (size - hits))
        return size, hits

    def _usage(self, prompt: int, hits: int, written: int) -> dict[str, Any] | None:
        if self.wrong == "tells no usage":
            return None
        if self.wrong == "claims too much":
            prompt, written = prompt + 1000, written + 1
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
        }
        if self.wrong != "tells no cached tokens":
            usage["prompt_tokens_details"] = {"cached_tokens": hits}
        return usage

    async def _stream(
        self, exchange: Exchange, text: str, finish: str, usage: Any, written: int
    ) -> None:
        await exchange.events(end=False)
        for piece in re.findall(r"\S*\s?", text):
            await asyncio.sleep(TOKEN_S)
            await self._event(exchange, piece, None)
        if usage and self.wrong == "counts streams otherwise":
            usage = usage | {"completion_tokens": written + 1, "total_tokens": 0}
        await self._event(exchange, "", finish, usage)
        if self.wrong != "ends without DONE":
            await exchange.event(b"data: [DONE]\n\n")
        await exchange.send(b"0\r\n\r\n")

    async def _event(
        self, exchange: Exchange, text: str, finish: str | None, usage: Any = None
    ) -> None:
        if self.wrong == "splits characters":
            text = "".join(char if ord(char) < 128 else "\ufffd\ufffd" for char in text)
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
        chunk = {"choices": [choice]} | ({"usage": usage} if usage else {})
        try:
            await exchange.event(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        except ConnectionError:
            if self.wrong != "runs on":
                raise
