"""Very many cheap requests of all sorts: answered, refused, and left by their client at any moment.

It shares the machine with the gateway, so it does little: sockets, and an HTTP parser in C.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from benchmarks.load import Connection, Sample, Target, ask

ABORTED, REFUSED = 0.1, 0.05
PATIENCE_S = 300.0
LEAST_WAIT_S, MOST_WAIT_S = 0.0, 0.03  # before a client leaves that has sent its request
PROMPTS = tuple(f"Say {word}, and then again. " * 8 for word in ("bulk", "head", "keel", "hull"))


class Asking(Connection):
    """It remembers what the last answer's request was called."""

    request_id = ""

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if name.lower() == b"x-request-id":
            self.request_id = value.decode()


@dataclass(frozen=True)
class Refusal:
    """A request that is refused, and how."""

    body: bytes
    status: int
    key: str = ""  # "": the good one


def body(model: str, prompt: str = "hello", **fields: Any) -> bytes:
    """What is posted to /v1/chat/completions."""
    messages = [{"role": "user", "content": prompt}]
    return msgspec.json.encode({"model": model, "messages": messages, **fields})


@dataclass
class Crowd:
    """Clients of one gateway. `models` answer; each request draws one, its size, and its fate."""

    target: Target
    models: Sequence[str]
    refusals: Sequence[Refusal]
    chance: random.Random = field(default_factory=lambda: random.Random(6))
    ended: list[str] = field(default_factory=list)  # requests whose end was received
    left: Counter[str] = field(default_factory=Counter)  # how many left, by moment
    refused: Counter[int] = field(default_factory=Counter)  # by status
    wrong: list[str] = field(default_factory=list)

    async def ask(self, requests: int, clients: int) -> None:
        """So many requests by so many clients; all have ended then, and their connections."""
        rest = iter(range(requests))
        await asyncio.gather(*(self._client(rest) for _ in range(clients)))

    async def _client(self, rest: Any) -> None:
        connection = Asking()
        while next(rest, None) is not None:
            drawn = self.chance.random()
            if drawn < ABORTED:
                await self._leave()
                continue
            if not connection.is_open:
                connection = await connect(self.target)
            if drawn < ABORTED + REFUSED:
                await self._be_refused(connection)
            else:
                await self._read(connection)
        connection.close()

    async def _read(self, connection: Asking) -> None:
        sample = await self._asked(connection, self.target.request(self._body()))
        if sample.error:
            self.wrong.append(sample.error)
        else:
            self.ended.append(connection.request_id)

    async def _be_refused(self, connection: Asking) -> None:
        refusal = self.chance.choice(self.refusals)
        target = with_key(self.target, refusal.key) if refusal.key else self.target
        sample = await self._asked(connection, target.request(refusal.body))
        self.refused[sample.status] += 1
        if sample.status != refusal.status:
            self.wrong.append(f"{refusal.status} expected: {sample.error or sample.status}")

    async def _asked(self, connection: Asking, request: bytes) -> Sample:
        return await ask(connection, request, PATIENCE_S)

    async def _leave(self) -> None:
        """A connection of its own, closed at some moment."""
        request = self.target.request(self._body())
        reader, writer = await asyncio.open_connection(*self.target.address)
        moment = self.chance.choice(["in its head", "in its body", "asked", "reading", "late"])
        self.left[moment] += 1
        head = request.index(b"\r\n\r\n") + 4
        with suppress(OSError):
            if moment == "in its head":
                writer.write(request[: self.chance.randrange(1, head)])
            elif moment == "in its body":
                writer.write(request[: self.chance.randrange(head, len(request))])
            else:
                writer.write(request)
            if moment == "asked":
                await asyncio.sleep(self.chance.uniform(LEAST_WAIT_S, MOST_WAIT_S))
            elif moment != "in its head" and moment != "in its body":
                await reader.read(1)
            if moment == "late":
                await asyncio.sleep(self.chance.uniform(LEAST_WAIT_S, MOST_WAIT_S))
            if self.chance.random() < 0.5:
                writer.transport.abort()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    def _body(self) -> bytes:
        chance = self.chance
        return body(
            chance.choice(self.models),
            chance.choice(PROMPTS),
            max_tokens=chance.choice((1, 4, 16)),
            stream=chance.random() < 0.5,
        )


def with_key(target: Target, key: str) -> Target:
    """The same for another caller."""
    return Target(target.url, target.path, {"authorization": f"Bearer {key}"})


async def connect(target: Target) -> Asking:
    """A connection, open."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(Asking, *target.address)
    return connection
